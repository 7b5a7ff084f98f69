"""Redis in trouble, one real server: what is unknown is never called lost, and renewal goes on by itself."""

from __future__ import annotations

import signal
import threading
import time

import gevent
import pluggy
import pytest
import redis
from faults.conftest import Recorder
from faults.proxy import (
    BUSY,
    LOADING,
    NOPERM,
    NOT_A_LIST,
    OOM,
    READONLY,
    FaultProxy,
    cut_in_the_middle,
    named,
    reply,
    script,
    swallow,
)
from faults.waiting import eventually
from gevent.pool import Pool

from echomq_plugin import FinishResult, LockOptions, LockPlugin, attach
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import RedisCallError

OPTIONS = LockOptions(lock_duration=8_000, lock_renew_time=2_000, call_limit_ms=2_000, stalled_interval=2_000)
"""A tick each second."""

RENEW = named("EVALSHA", "EVAL")
CLUSTERDOWN = b"-CLUSTERDOWN The cluster is down\r\n"


@pytest.fixture
def plugin(pm: pluggy.PluginManager, recorder: Recorder, own_server: EmbeddedServer):
    """A plugin on a server of its own, behind a proxy."""
    with FaultProxy(own_server.port) as proxy:
        attached = attach(pm, proxy.url, "mail", OPTIONS)
        attached.start()
        attached.proxy = proxy  # type: ignore[attr-defined]
        yield attached
        proxy.clear()
        attached.stop(timeout_ms=0)


def renewed_again(recorder: Recorder, *job_ids: str) -> None:
    recorder.renewed.clear()
    eventually(lambda: set(job_ids) <= set(recorder.renewed), "renewed again")


@pytest.mark.parametrize(
    "answer",
    [READONLY, LOADING, OOM, BUSY, NOPERM, CLUSTERDOWN, NOT_A_LIST],
    ids=["READONLY", "LOADING", "OOM", "BUSY", "NOPERM", "CLUSTERDOWN", "not a list"],
)
def test_an_answer_that_is_none_is_a_failure_on_a_connection_that_is_left_and_nothing_is_lost(
    plugin: LockPlugin, recorder: Recorder, answer: bytes
) -> None:
    lock = plugin.job_start("mail", "1")
    refused = plugin.proxy.on(script("extendLocks-1"), reply(answer))
    eventually(lambda: refused.hits >= 2 and len(recorder.failed) >= 2)
    assert recorder.lost == []
    assert all(isinstance(error, RedisCallError) for error in recorder.failed)
    plugin.proxy.clear()
    renewed_again(recorder, "1")
    assert recorder.lost == []
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


def test_a_reply_that_breaks_off_is_a_failure_and_the_next_call_has_a_connection_of_its_own(
    plugin: LockPlugin, recorder: Recorder
) -> None:
    lock = plugin.job_start("mail", "1")
    plugin.proxy.on(script("extendLocks-1"), cut_in_the_middle, times=2)
    eventually(lambda: len(recorder.failed) == 2)
    renewed_again(recorder, "1")
    assert recorder.lost == []
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


def test_a_half_open_link_takes_one_call_limit_and_the_next_try_is_on_a_new_one(
    plugin: LockPlugin, recorder: Recorder
) -> None:
    lock = plugin.job_start("mail", "1")
    hole = plugin.proxy.on(script("extendLocks-1"), swallow, times=1)
    eventually(lambda: hole.hits == 1)
    began = time.monotonic()
    eventually(lambda: recorder.failed)
    assert time.monotonic() - began < OPTIONS.lock_duration / 1000
    renewed_again(recorder, "1")
    assert recorder.lost == []
    silent = plugin.proxy.on(script("releaseLock-6"), swallow, times=1)
    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN  # bounded too
    assert silent.hits == 1
    eventually(lambda: plugin.manager.wait_until_idle(0))


def test_scripts_are_flushed_at_every_moment_and_nobody_is_told(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    with redis.Redis(port=own_server.port) as admin:
        for job_id in map(str, range(5)):
            admin.script_flush()
            lock = plugin.job_start("mail", job_id)
            admin.script_flush()
            renewed_again(recorder, job_id)
            admin.script_flush()
            assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
    assert recorder.failed == []
    assert recorder.lost == []


def test_a_master_that_was_demoted_is_left_once_the_name_leads_elsewhere(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    lock = plugin.job_start("mail", "1")
    port = own_server.port
    other = EmbeddedServer(
        own_server.binary, ["--replicaof", "127.0.0.1", str(port), "--repl-diskless-sync-delay", "0"]
    )
    with other, redis.Redis(port=port) as old, redis.Redis(port=other.port) as new:
        eventually(lambda: new.info("replication")["master_link_status"] == "up" and new.exists("emq:mail:1:lock"))
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", other.port)
        eventually(lambda: len(recorder.failed) >= 2)
        assert recorder.lost == []
        plugin.proxy.move_to(other.port)
        renewed_again(recorder, "1")
        assert recorder.lost == []
        # This thread's own connection still leads to the demoted master; the release is repeated until answered.
        assert plugin.job_finish(lock, "completed") is not FinishResult.LOST
        eventually(lambda: plugin.manager.wait_until_idle(0) and not new.exists("emq:mail:1:lock"))
        plugin.stop(timeout_ms=0)


def test_a_full_server_without_eviction_renews_nothing_and_nothing_is_called_lost(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    lock = plugin.job_start("mail", "1")
    with redis.Redis(port=own_server.port) as admin:
        admin.config_set("maxmemory", 1)
        eventually(lambda: len(recorder.failed) >= 2)
        assert any("maxmemory" in str(error) for error in recorder.failed)
        assert recorder.lost == []
        admin.config_set("maxmemory", 0)
    renewed_again(recorder, "1")
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


def test_a_lock_that_a_full_server_evicts_is_lost_once_and_its_job_comes_back(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    recorder.put_back = True
    plugin.job_start("mail", "1", payload="p")
    with redis.Redis(port=own_server.port) as admin:
        admin.config_set("maxmemory-policy", "volatile-ttl")
        admin.config_set("maxmemory", 1)
        eventually(lambda: not admin.exists("emq:mail:1:lock") or _write(admin))
        admin.config_set("maxmemory", 0)
        admin.config_set("maxmemory-policy", "noeviction")
    # A sweep and a renewal see it in any order: both come by themselves.
    eventually(lambda: recorder.stalled and recorder.lost)
    assert [(job_id, reason) for _, job_id, reason in recorder.lost] == [("1", "missing")]
    assert [job.payload for job in recorder.stalled] == ["p"]


def _write(admin: redis.Redis) -> bool:
    try:
        admin.set("more", "x")
    except redis.RedisError:
        pass  # full, and so it should be
    return False


def test_a_script_that_keeps_the_server_busy_is_waited_for(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    lock = plugin.job_start("mail", "1")
    with redis.Redis(port=own_server.port) as admin, redis.Redis(port=own_server.port, socket_timeout=60) as busy:
        admin.config_set("lua-time-limit", 100)

        def hog() -> None:
            with pytest.raises(redis.RedisError):
                busy.eval("while true do end", 0)

        thread = threading.Thread(target=hog)
        thread.start()
        eventually(lambda: recorder.failed)
        eventually(lambda: _killed(admin))
        thread.join()
    renewed_again(recorder, "1")
    assert recorder.lost == []
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


def _killed(admin: redis.Redis) -> bool:
    try:
        admin.execute_command("SCRIPT KILL")
    except redis.RedisError:
        return False
    return True


def test_a_server_that_stands_still_for_less_than_the_lock_duration_costs_nothing(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    locks = [plugin.job_start("mail", str(number)) for number in range(20)]
    renewed_again(recorder, "0", "19")
    own_server.signal(signal.SIGSTOP)
    try:
        eventually(lambda: recorder.failed)
    finally:
        own_server.signal(signal.SIGCONT)
    renewed_again(recorder, *[lock.job_id for lock in locks])
    assert recorder.lost == []
    assert {plugin.job_finish(lock, "completed") for lock in locks} <= {FinishResult.RELEASED}


def test_a_server_that_stands_still_for_longer_costs_each_lock_one_report_and_the_jobs_come_back(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer
) -> None:
    recorder.put_back = True
    for number in range(20):
        plugin.job_start("mail", str(number))
    own_server.signal(signal.SIGSTOP)
    try:
        eventually(lambda: len(recorder.lost) == 20)
    finally:
        own_server.signal(signal.SIGCONT)
    assert {reason for _, _, reason in recorder.lost} == {"expired"}
    eventually(lambda: len(recorder.recovered) == 20, limit_s=60)
    assert sorted(int(job.job_id) for job in recorder.stalled) == list(range(20))
    assert len(recorder.lost) == 20


@pytest.mark.parametrize("data", ["kept", "gone"])
def test_a_server_that_starts_again_keeps_its_locks_or_has_its_jobs_brought_back(
    plugin: LockPlugin, recorder: Recorder, own_server: EmbeddedServer, data: str
) -> None:
    recorder.put_back = True
    locks = [plugin.job_start("mail", str(number), payload="p") for number in range(20)]
    if data == "gone":
        with redis.Redis(port=own_server.port) as admin:
            admin.flushall()
    own_server.restart()
    if data == "kept":
        renewed_again(recorder, *[lock.job_id for lock in locks])
        assert recorder.lost == []
        return
    # The server knows neither locks nor entries nor the queue: this worker tells it again.
    eventually(lambda: len(recorder.recovered) == 20, limit_s=60)
    assert sorted((int(job_id), reason) for _, job_id, reason in recorder.lost) == [(n, "missing") for n in range(20)]
    assert {job.payload for job in recorder.stalled} == {"p"}


def test_five_hundred_greenlets_start_and_end_jobs_during_ticks_and_none_meets_another(
    plugin: LockPlugin, recorder: Recorder
) -> None:
    def job(number: int) -> FinishResult:
        lock = plugin.job_start("mail", str(number))
        gevent.sleep(0.001 * (number % 50))
        assert lock.confirm()
        return plugin.job_finish(lock, "completed")

    held = plugin.job_start("mail", "held")
    pool = Pool(60)
    results = pool.map(job, range(500))
    assert results.count(FinishResult.RELEASED) == 500
    renewed_again(recorder, "held")
    assert recorder.lost == []
    assert recorder.failed == []
    assert plugin.job_finish(held, "completed") is FinishResult.RELEASED


def test_a_crowded_hub_loses_no_lock(plugin: LockPlugin, recorder: Recorder) -> None:
    locks = [plugin.job_start("mail", str(number)) for number in range(50)]
    done = False

    def crowd(cpu_ms: int) -> None:
        while not done:
            end = time.perf_counter() + cpu_ms / 1000
            while time.perf_counter() < end:
                pass
            gevent.sleep(0)

    greenlets = [gevent.spawn(crowd, 5 + number % 16) for number in range(200)]
    rounds = 0
    until = time.monotonic() + 30
    while rounds < 3:
        recorder.renewed.clear()
        while len(set(recorder.renewed)) < len(locks):
            assert time.monotonic() < until
            gevent.sleep(0.05)
        rounds += 1
    done = True
    gevent.joinall(greenlets)
    assert recorder.lost == []
    assert {plugin.job_finish(lock, "completed") for lock in locks} == {FinishResult.RELEASED}
