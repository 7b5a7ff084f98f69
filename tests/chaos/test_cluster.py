"""On a cluster: a hash tag or nothing, every call under its limit, and a moving slot that invents no loss."""

from __future__ import annotations

import re
import signal

import gevent
import pytest
import redis
from faults.proxy import FaultProxy, every_command, swallow
from faults.waiting import eventually
from redis.crc import key_slot

from chaos.servers import Cluster
from echomq_plugin import FinishResult, LockOptions, StartUndecidedError, attach
from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import RedisCallError, ServerUnsuitableError

OPTIONS = LockOptions(lock_duration=6_000, lock_renew_time=2_000, stalled_interval=2_000)


@pytest.fixture(autouse=True)
def empty(cluster: Cluster) -> None:
    for node in cluster.nodes:
        cluster.clients[node.port].flushall()


def test_a_queue_without_a_hash_tag_is_refused_at_start_with_what_to_write(cluster, pm) -> None:
    plugin = attach(pm, cluster.connection(), "mail", OPTIONS)
    with pytest.raises(ServerUnsuitableError) as refused:
        plugin.start()
    assert "queue='{mail}'" in str(refused.value)
    assert "prefix='{emq}'" in str(refused.value)


def test_a_node_that_is_taken_for_a_single_server_is_refused_with_the_client_to_pass(cluster, pm) -> None:
    elsewhere = next(node for node in cluster.nodes if node is not cluster.owner("emq:{mail}:held"))
    plugin = attach(pm, elsewhere.url, "{mail}", OPTIONS)
    with pytest.raises(ServerUnsuitableError, match=re.escape("connect with redis.RedisCluster")):
        plugin.start()


def test_a_queue_that_comes_later_is_refused_too(cluster, pm) -> None:
    plugin = attach(pm, cluster.connection(), "{mail}", OPTIONS)
    plugin.start()
    try:
        with pytest.raises(ServerUnsuitableError, match=re.escape("queue='{orders}'")):
            plugin.job_start("orders", "1")
    finally:
        plugin.stop(timeout_ms=0)


def test_jobs_of_queues_on_different_nodes_are_renewed_confirmed_and_released(cluster, pm, recorder) -> None:
    queues = [f"{{q{number}}}" for number in range(6)]
    plugin = attach(pm, cluster.connection(), queues[0], OPTIONS)
    plugin.start()
    locks = [plugin.job_start(queue, "1") for queue in queues]
    assert len({cluster.owner(f"emq:{queue}:1:lock").port for queue in queues}) > 1
    eventually(lambda: recorder.renewed.count("1") >= 3 * len(queues))
    assert all(lock.confirm() for lock in locks)
    assert [plugin.job_finish(lock, "completed") for lock in locks] == [FinishResult.RELEASED] * len(queues)
    plugin.stop(timeout_ms=0)
    assert recorder.lost == []
    assert recorder.failed == []


def move_slot(cluster: Cluster, slot: int, source: EmbeddedServer, target: EmbeddedServer) -> None:
    """As an operator would, key by key."""
    here, there = cluster.clients[source.port], cluster.clients[target.port]
    there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.node_id(source))
    here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.node_id(target))
    while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
        here.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", *keys)
        gevent.sleep(0.02)  # so that ticks come in between
    for node in (target, source, *cluster.nodes):
        cluster.clients[node.port].execute_command("CLUSTER", "SETSLOT", slot, "NODE", cluster.node_id(target))


def test_moving_a_slot_while_renewing_invents_no_loss(cluster, pm, recorder) -> None:
    queue = "{moving}"
    plugin = attach(pm, cluster.connection(), queue, OPTIONS)
    plugin.start()
    locks = [plugin.job_start(queue, str(number)) for number in range(300)]
    key = f"emq:{queue}:1:lock"
    for _ in range(2):  # there and back
        source = cluster.owner(key)
        target = next(node for node in cluster.nodes if node is not source)
        move_slot(cluster, key_slot(key.encode()), source, target)
        assert cluster.owner(key) is target
    recorder.renewed.clear()
    eventually(lambda: len(set(recorder.renewed)) == len(locks))
    assert recorder.lost == []
    assert {plugin.job_finish(lock, "completed") for lock in locks} == {FinishResult.RELEASED}
    plugin.stop(timeout_ms=0)


def test_a_node_that_never_answers_ends_the_call_at_its_limit_and_the_next_call_asks_another(cluster) -> None:
    with FaultProxy(cluster.nodes[0].port) as proxy:
        proxy.on(every_command, swallow)
        client = redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[1].port)
        connections = Connections(client, call_limit_ms=500)
        only_through_the_proxy = (("127.0.0.1", proxy.port), ("127.0.0.1", cluster.nodes[1].port))
        object.__setattr__(connections.server, "nodes", only_through_the_proxy)

        def ask(client):
            return client.execute_command("GET", "{mail}")

        with pytest.raises(RedisCallError, match=r"no answer within 500 ms|Timeout"):
            connections.call("ask", ask)
        asked = len(proxy.commands)
        assert asked > 0
        assert connections.call("ask", ask) is None
        assert len(proxy.commands) == asked
        connections.close_thread()
        client.close()


def test_a_start_on_a_node_that_is_stopped_is_undecided_and_given_up_when_it_goes_on(cluster, pm) -> None:
    queue = "{stopped}"
    plugin = attach(pm, cluster.connection(), queue, OPTIONS)
    plugin.start()
    node = cluster.owner(f"emq:{queue}:1:lock")
    node.signal(signal.SIGSTOP)
    try:
        with pytest.raises(StartUndecidedError):
            plugin.job_start(queue, "1")
    finally:
        node.signal(signal.SIGCONT)
    eventually(lambda: plugin.manager.wait_until_idle(0))
    eventually(lambda: plugin.stop(timeout_ms=0))


def test_a_node_that_hangs_costs_no_lock_on_the_others(cluster, pm, recorder) -> None:
    queues = [f"{{q{number}}}" for number in range(6)]
    options = LockOptions(lock_duration=6_000, lock_renew_time=2_000, call_limit_ms=1_000, stalled_interval=60_000)
    plugin = attach(pm, cluster.connection(), queues[0], options)
    plugin.start()
    for queue in queues:
        plugin.job_start(queue, "1")
    owners = {queue: cluster.owner(f"emq:{queue}:1:lock") for queue in queues}
    on_it = {queue for queue in queues if owners[queue] is owners[queues[0]]}
    node = owners[queues[0]]
    timeouts = {each: each.config_get("cluster-node-timeout") for each in cluster.clients.values()}
    for each in cluster.clients.values():
        each.config_set("cluster-node-timeout", 60_000)  # the others are to go on
    node.signal(signal.SIGSTOP)
    try:
        eventually(lambda: {queue for queue, _, _ in recorder.lost} >= on_it, "its own have run out")
        recorder.renewed.clear()
        eventually(lambda: recorder.renewed.count("1") >= 2 * (len(queues) - len(on_it)), "the others' go on")
    finally:
        node.signal(signal.SIGCONT)
        for each, timeout in timeouts.items():
            each.config_set("cluster-node-timeout", timeout["cluster-node-timeout"])
    assert {queue for queue, _, _ in recorder.lost} == on_it
    plugin.stop(timeout_ms=0)
