"""Starting and stopping: from two sides at once, in the middle of calls, and again and again."""

from __future__ import annotations

import gc
import threading

import gevent
import pluggy
import pytest
from faults.proxy import delay, named, script, swallow_reply
from faults.waiting import eventually, let_pass

from echomq_plugin import LockManager, LockOptions, attach, process_state
from echomq_plugin.events import LocksLost, LostLock
from echomq_plugin.lanes import Lane
from echomq_plugin.native import start_thread

OPTIONS = LockOptions(lock_duration=3_000, stalled_interval=60_000)


@pytest.fixture
def at_exit(monkeypatch):
    """What the interpreter would call at its exit."""
    registered: list[object] = []
    monkeypatch.setattr(process_state.atexit, "register", registered.append)
    monkeypatch.setattr(process_state.atexit, "unregister", registered.remove)
    return registered


def test_a_stop_in_the_apps_hub_leaves_the_calls_of_other_greenlets_alone(proxy, client, pm):
    plugin = attach(pm, proxy.url, "mail", LockOptions(lock_duration=3_000, dedicated_hub=False))
    gevent.sleep(0)
    plugin.start()
    lock = plugin.job_start("mail", "1")
    slow = proxy.on(named("GET"), delay(after_ms=150))
    asking = gevent.spawn(lock.confirm)
    eventually(lambda: slow.hits)
    assert not plugin.stop(timeout_ms=0)  # the job still runs
    assert asking.get(timeout=10) is True
    assert plugin.job_finish(lock, "completed").value == "released"


@pytest.mark.parametrize("dedicated", [True, False], ids=["own hub", "same hub"])
def test_a_stop_ends_soon_though_a_call_to_redis_hangs(proxy, client, pm, dedicated):
    options = LockOptions(lock_duration=200_000, lock_renew_time=400, call_limit_ms=60_000, dedicated_hub=dedicated)
    plugin = attach(pm, proxy.url, "mail", options)
    gevent.sleep(0)
    plugin.start()
    plugin.job_start("mail", "1")
    hanging = proxy.on(script("extendLocks-1"), swallow_reply)
    eventually(lambda: hanging.hits)
    with gevent.Timeout(20):
        assert not plugin.stop(timeout_ms=0)
    let_pass(600)
    assert hanging.hits == 1  # nobody renews any more


def test_two_sides_that_start_at_once_start_one_greenlet(server, client):
    renewed: list[list[str]] = []
    client.set("emq:mail:1:lock", "t", px=60_000)
    manager = LockManager(server.url, "mail", lock_duration=3_000, on_locks_renewed=renewed.append)
    manager.track_job("1", "t")
    for _ in range(4):
        start_thread(manager.start)
    greenlets = [gevent.spawn(manager.start) for _ in range(4)]
    gevent.joinall(greenlets, timeout=10, raise_error=True)
    eventually(lambda: len(renewed) >= 1)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    count = len(renewed)
    eventually(lambda: len(renewed) >= count + 3)
    after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert after - before <= len(renewed) - count + 1
    manager.stop()


def test_starting_and_stopping_again_and_again_leaves_nothing_behind(server, client, at_exit):
    def rounds(times: int) -> None:
        for _ in range(times):
            plugin = attach(pluggy.PluginManager("shop"), server.url, "mail", OPTIONS)
            plugin.start()
            with plugin.job("1"):
                pass
            assert plugin.stop(timeout_ms=1000)
            assert len(plugin.connections._clients) <= 1  # the caller's own
            del plugin
        gc.collect()

    rounds(2)
    sockets = client.info("clients")["connected_clients"]
    lanes = sum(isinstance(each, Lane) for each in gc.get_objects())
    rounds(8)
    assert at_exit == []
    eventually(lambda: client.info("clients")["connected_clients"] <= sockets)
    # Not counted: gevent itself keeps a destroyed hub of an ended thread.
    assert sum(isinstance(each, Lane) for each in gc.get_objects()) <= lanes


def test_a_stop_that_was_killed_leaves_the_join_to_the_interpreters_exit(server, client, at_exit):
    manager = LockManager(server.url, "mail", lock_duration=3_000)
    manager.start()
    stopping = gevent.spawn(manager.stop)
    gevent.sleep(0)
    stopping.kill(timeout=10)
    assert len(at_exit) == 1
    at_exit[0]()
    manager.start()
    assert len(at_exit) == 2
    assert manager.stop()
    assert len(at_exit) == 1


def test_a_loss_found_just_before_the_stop_is_told_before_the_stop_returns(server, client, pm, recorder):
    plugin = attach(pm, server.url, "mail", OPTIONS)
    plugin.start()
    for number in range(20):
        plugin.reports.post(LocksLost("mail", (LostLock(str(number), "t", "missing", 1),)))
    plugin.stop(timeout_ms=0)
    assert len(recorder.lost) == 20
    recorder.lost.clear()
    let_pass(100)
    assert recorder.lost == []


def test_short_lived_threads_leave_no_clients_locks_or_sockets_behind(server, client, pm):
    plugin = attach(pm, server.url, "mail", OPTIONS)
    plugin.start()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with plugin.job(f"thread-{number}") as lock:
                assert lock.confirm()
        except BaseException as error:
            errors.append(error)

    def in_threads(numbers: range) -> None:
        for number in numbers:
            threads = [threading.Thread(target=work, args=(f"{number}-{side}",)) for side in "ab"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    in_threads(range(10))
    clients, sockets = len(plugin.connections._clients), client.info("clients")["connected_clients"]
    in_threads(range(10, 60))
    assert errors == []
    assert len(plugin.connections._clients) <= clients + 2
    assert client.info("clients")["connected_clients"] <= sockets + 4
    assert plugin.stop(timeout_ms=1000)
    assert client.keys("emq:mail:*:lock") == []
