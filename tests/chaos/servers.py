"""Sentinel and Cluster from the real server binaries, set up through redis-py alone, and stopped by pid."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot
from redis.sentinel import Sentinel

from echomq_plugin.embedded import EmbeddedServer, free_port

SERVICE = "mymaster"
DOWN_AFTER_MS = 1_000
UP_LIMIT_S = 40.0
SYNC_AT_ONCE = ("--repl-diskless-sync-delay", "0")


def until(condition: Any, what: str) -> None:
    """Wait for servers to agree."""
    end = time.monotonic() + UP_LIMIT_S
    while True:
        try:
            if condition():
                return
        except (redis.RedisError, OSError):
            pass  # not yet
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.05)


class SentinelProcess:
    """One sentinel: it rewrites its own configuration file."""

    def __init__(self, binary: str, folder: Path, master_port: int) -> None:
        self.port = free_port()
        conf = folder / f"sentinel-{self.port}.conf"
        conf.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        with (folder / f"sentinel-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen([binary, str(conf), "--sentinel"], stdout=log, stderr=subprocess.STDOUT)
        self.client = redis.Redis(port=self.port, socket_timeout=2)

    def stop(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait(10)


class SentinelGroup:
    """One master, two replicas, three sentinels; a context manager."""

    def __init__(self, binary: str) -> None:
        self.binary = binary
        self.servers: list[EmbeddedServer] = []
        self.sentinels: list[SentinelProcess] = []

    def __enter__(self) -> SentinelGroup:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        master = EmbeddedServer(self.binary, SYNC_AT_ONCE).start()
        self.servers.append(master)
        for _ in range(2):
            replica = EmbeddedServer(self.binary, [*SYNC_AT_ONCE, "--replicaof", "127.0.0.1", str(master.port)])
            self.servers.append(replica.start())
            with redis.Redis(port=replica.port) as client:
                until(
                    lambda client=client: client.info("replication")["master_link_status"] == "up",
                    "a replica has the data",
                )
        self.sentinels = [SentinelProcess(self.binary, master.folder, master.port) for _ in range(3)]
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._knows_all(sentinel.client), "the sentinels know one another")

    @staticmethod
    def _knows_all(client: redis.Redis) -> bool:
        state = client.sentinel_masters()[SERVICE]
        return state["num-slaves"] == 2 and state["num-other-sentinels"] == 2

    def addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]

    def connection(self) -> redis.Redis:
        """A client as an app would make it."""
        return Sentinel(self.addresses(), socket_timeout=2).master_for(SERVICE, socket_timeout=2)

    def master(self) -> EmbeddedServer:
        port = int(self.sentinels[0].client.sentinel_get_master_addr_by_name(SERVICE)[1])
        return next(server for server in self.servers if server.port == port)

    def __exit__(self, *_: object) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        for server in self.servers:
            server.close()


class Cluster:
    """Three masters with a replica each; a context manager."""

    def __init__(self, binary: str, *, replicas: bool = True) -> None:
        self.binary = binary
        self.nodes: list[EmbeddedServer] = []
        self.clients: dict[int, redis.Redis] = {}
        self._replicas = replicas

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for _ in range(6 if self._replicas else 3):
            arguments = [*SYNC_AT_ONCE, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
            arguments += ["--cluster-node-timeout", "1500"]
            node = EmbeddedServer(self.binary, arguments, port=_port_with_a_bus()).start()
            self.nodes.append(node)
            self.clients[node.port] = redis.Redis(port=node.port, socket_timeout=5, decode_responses=True)
        first = self.clients[self.nodes[0].port]
        for number, node in enumerate(self.nodes[:3]):
            slots = range(number * 16384 // 3, (number + 1) * 16384 // 3)
            self.clients[node.port].execute_command("CLUSTER", "ADDSLOTS", *slots)
            self.clients[node.port].execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        for number, node in enumerate(self.nodes[3:]):
            master_id = self.node_id(self.nodes[number])
            client = self.clients[node.port]
            until(
                lambda client=client, master_id=master_id: client.execute_command("CLUSTER", "REPLICATE", master_id),
                "a replica knows its master",
            )
        for node in self.nodes:
            until(lambda node=node: self._is_ready(node), "the cluster is up")

    def _is_ready(self, node: EmbeddedServer) -> bool:
        client = self.clients[node.port]
        info = client.execute_command("CLUSTER", "INFO")
        said = info if isinstance(info, str) else "\n".join(f"{name}:{value}" for name, value in info.items())
        up = "cluster_state:ok" in said and f"cluster_known_nodes:{len(self.nodes)}" in said
        linked = node in self.nodes[:3] or client.info("replication")["master_link_status"] == "up"
        return up and linked

    def node_id(self, node: EmbeddedServer) -> str:
        return str(self.clients[node.port].execute_command("CLUSTER", "MYID"))

    def owner(self, key: str) -> EmbeddedServer:
        """The master that has a key's slot, as a live node says."""
        slot = key_slot(key.encode())
        for node in self.nodes:
            try:
                found = self.clients[node.port].execute_command("CLUSTER", "SLOTS")
            except (redis.RedisError, OSError):
                continue
            for first, last, master, *_ in found if isinstance(found, list) else ():
                if first <= slot <= last:
                    return next(each for each in self.nodes if each.port == master[1])
        raise LookupError(key)

    def connection(self) -> redis.RedisCluster:
        """A client as an app would make it."""
        return redis.RedisCluster(host="127.0.0.1", port=self.nodes[0].port)

    def __exit__(self, *_: object) -> None:
        for client in self.clients.values():
            client.close()
        for node in self.nodes:
            node.close()


def _port_with_a_bus() -> int:
    """Nodes talk to one another ten thousand ports above, so an ephemeral port is too high."""
    while True:
        port = random.randint(12_000, 28_000)
        try:
            for each in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", each))
        except OSError:
            continue
        return port


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
