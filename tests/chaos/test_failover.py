"""
The master is killed while 4 worker processes hold 1 000 locks, and 20 more that no replica has heard of.

Renewal goes on by itself on the new master; each lock that it never got is reported once, and none of the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pluggy
import pytest
import redis
from faults.conftest import Recorder
from faults.waiting import eventually

from chaos import holder
from chaos.servers import SERVICE, Cluster, SentinelGroup
from echomq_plugin import LockPlugin, attach
from echomq_plugin.embedded import EmbeddedServer

QUEUE = "{mail}"
WORKERS, LOCKS_EACH, LATE = 4, 250, 20


class Holders:
    """The worker processes; their output goes to files."""

    def __init__(self, server: str, folder: Path) -> None:
        self.outputs = [folder / f"holder-{number}" for number in range(WORKERS)]
        self.processes = []
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        for number, output in enumerate(self.outputs):
            with output.open("w") as out:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, holder.__file__, server, QUEUE, str(number * LOCKS_EACH), str(LOCKS_EACH)],
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, "PYTHONPATH": path},
                    )
                )

    def said(self, what: str) -> list[str]:
        return [line for output in self.outputs for line in output.read_text().splitlines() if line.startswith(what)]

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            assert process.wait(30) == 0

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)


def lose_the_master(master: EmbeddedServer, replicas: list[EmbeddedServer], plugin: LockPlugin) -> list[str]:
    """Take some locks that no replica hears of, and kill the master; return their ids."""
    client = redis.Redis(port=master.port)
    for replica in replicas:
        replica.signal(signal.SIGSTOP)
    # What is on its way to a stopped replica still arrives; what comes after this does not.
    client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    late = [plugin.job_start(QUEUE, f"late-{number}").job_id for number in range(LATE)]
    client.close()
    master.stop()
    for replica in replicas:
        replica.signal(signal.SIGCONT)
    return late


def check(connection: redis.Redis, holders: Holders, plugin: LockPlugin, recorder: Recorder, late: list[str]) -> None:
    """To be called as soon as the master is dead."""
    died_at = time.monotonic()
    early = [str(number) for number in range(WORKERS * LOCKS_EACH)]
    not_renewed = set(early)

    def all_renewed() -> bool:
        assert holders.said("lost") == []
        # Whatever the old master renewed lives for less than this.
        most_without = holder.LOCK_MS - (time.monotonic() - died_at) * 1000
        asked = sorted(not_renewed)
        pipeline = connection.pipeline(transaction=False)
        for job_id in asked:
            pipeline.pttl(f"emq:{QUEUE}:{job_id}:lock")
        try:
            lives = pipeline.execute()
        except redis.RedisError:
            return False
        not_renewed.difference_update(job_id for job_id, life in zip(asked, lives, strict=True) if life > most_without)
        return not not_renewed

    eventually(lambda: len(recorder.lost) >= LATE, "the late ones are reported", 60)
    eventually(all_renewed, "the others are renewed on the new master", 60)
    assert sorted(recorder.lost) == sorted((QUEUE, job_id, "missing") for job_id in late)
    # Nobody but us still knew of them: now the sweep does.
    assert set(connection.hkeys(f"emq:{QUEUE}:held")) == {name.encode() for name in (*early, *late)}
    holders.end()
    assert [line.split()[1] for line in holders.said("released")] == [str(LOCKS_EACH)] * WORKERS
    assert set(connection.hkeys(f"emq:{QUEUE}:held")) == {name.encode() for name in late}
    assert plugin.manager.get_active_job_count() == 0


@pytest.mark.timeout(240)
def test_the_master_of_a_sentinel_group_is_killed(
    sentinels: SentinelGroup, tmp_path: Path, pm: pluggy.PluginManager, recorder: Recorder
) -> None:
    ports = ",".join(str(port) for _, port in sentinels.addresses())
    holders = Holders(f"sentinel:{SERVICE}:{ports}", tmp_path)
    plugin = attach(pm, sentinels.connection(), QUEUE, holder.OPTIONS)
    try:
        plugin.start()
        eventually(lambda: len(holders.said("ready")) == WORKERS, str(tmp_path), 60)
        master = sentinels.master()
        late = lose_the_master(master, [each for each in sentinels.servers if each is not master], plugin)
        check(sentinels.connection(), holders, plugin, recorder, late)
    finally:
        holders.kill()
        plugin.stop(timeout_ms=0)


@pytest.mark.timeout(240)
def test_a_master_of_a_cluster_is_killed(
    cluster_with_replicas: Cluster, tmp_path: Path, pm: pluggy.PluginManager, recorder: Recorder
) -> None:
    cluster = cluster_with_replicas
    holders = Holders(f"cluster:{cluster.nodes[0].port}", tmp_path)
    plugin = attach(pm, cluster.connection(), QUEUE, holder.OPTIONS)
    try:
        plugin.start()
        eventually(lambda: len(holders.said("ready")) == WORKERS, str(tmp_path), 60)
        master = cluster.owner(f"emq:{QUEUE}:1:lock")
        replica = cluster.nodes[cluster.nodes.index(master) + 3]
        late = lose_the_master(master, [replica], plugin)
        with redis.Redis(port=replica.port) as promoted:
            check(promoted, holders, plugin, recorder, late)
    finally:
        holders.kill()
        plugin.stop(timeout_ms=0)
