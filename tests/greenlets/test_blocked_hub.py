"""The app's hub is blocked for three lock durations (case 12), or for ever; times are a tenth of the case's."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import time

import gevent
import pytest
from faults.waiting import eventually, let_pass

from echomq_plugin import LockOptions, attach
from echomq_plugin.native import native_sleep, start_thread

LOCK_MS = 1_500
JOBS = [str(number) for number in range(20)]


def start(pm, server, **options):
    plugin = attach(pm, server.url, "mail", LockOptions(lock_duration=LOCK_MS, stalled_interval=60_000, **options))
    gevent.sleep(0)  # the app has a hub
    plugin.start()
    return plugin


def test_a_hub_blocked_for_three_lock_durations_loses_no_lock(server, client, pm, recorder):
    plugin = start(pm, server)
    locks = [plugin.job_start("mail", job) for job in JOBS]
    lowest: list[int] = []

    def watch(until: float) -> None:
        import redis

        watching = redis.Redis(host="127.0.0.1", port=server.port)
        while time.monotonic() < until:
            lowest.append(min(watching.pttl(f"emq:mail:{job}:lock") for job in JOBS))
            native_sleep(0.02)
        watching.close()

    # The watcher is another process' worth of eyes: a native thread would wait through gevent where that is patched.
    native_sleep(3 * LOCK_MS / 1000)
    watch(time.monotonic() + 0.2)
    let_pass(LOCK_MS)
    assert recorder.lost == []
    assert min(lowest) > 0
    assert all(lock.believed and lock.confirm() for lock in locks)
    assert [plugin.job_finish(lock, "completed").value for lock in locks] == ["released"] * len(JOBS)
    assert plugin.stop(timeout_ms=1000)


def test_in_the_same_hub_every_lock_is_lost_reported_once_and_the_report_says_how_long_it_was_blocked(
    server, client, pm, recorder
):
    plugin = start(pm, server, dedicated_hub=False)
    locks = [plugin.job_start("mail", job) for job in JOBS]
    native_sleep(3 * LOCK_MS / 1000)
    eventually(lambda: len(recorder.lost) >= len(JOBS))
    let_pass(LOCK_MS)
    assert sorted(recorder.lost) == sorted(("mail", job, "missing") for job in JOBS)
    assert all(lost.hub_blocked_ms >= 2 * LOCK_MS for lost in recorder.lost_locks)
    # Nothing is silently taken again.
    assert client.keys("emq:mail:*:lock") == []
    assert not any(lock.believed for lock in locks)
    for lock in locks:
        plugin.job_finish(lock, "interrupted")
    assert plugin.stop(timeout_ms=1000)


@pytest.mark.parametrize("turning", [True, False], ids=["hub turns", "hub is blocked"])
def test_a_log_handlers_lock_that_the_host_holds_delays_neither_renewal_nor_the_other_plugins(
    server, client, pm, recorder, turning
):
    logger, handler = logging.getLogger("echomq_plugin"), logging.StreamHandler(io.StringIO())
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        plugin = start(pm, server, hook_limit_ms=200)
        locks = [plugin.job_start("mail", job) for job in JOBS]
        handler.acquire()
        try:
            before = len(recorder.batches)
            if turning:
                let_pass(3 * LOCK_MS)
            else:
                native_sleep(3 * LOCK_MS / 1000)
            told = len(recorder.batches) - before
        finally:
            handler.release()
        assert all(lock.confirm() for lock in locks)
        assert recorder.lost == []
        assert told >= 3
        for lock in locks:
            plugin.job_finish(lock, "completed")
        assert plugin.stop(timeout_ms=1000)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def test_reports_reach_a_host_whose_hub_never_turns_again(server, client, pm, recorder):
    plugin = start(pm, server)
    plugin.job_start("mail", "1")
    plugin.job_start("mail", "2")
    client.delete("emq:mail:1:lock")
    until = time.monotonic() + 30
    while not (recorder.lost and len(recorder.batches) >= 3):
        assert time.monotonic() < until
        native_sleep(0.02)
    assert recorder.lost == [("mail", "1", "missing")]
    plugin.stop(timeout_ms=0)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows a thread's signal mask on Linux only; CI is Linux")
def test_all_signals_are_blocked_in_the_threads_of_the_library(server, client, pm, recorder):
    before = set(os.listdir("/proc/self/task"))
    plugin = start(pm, server)
    lock = plugin.job_start("mail", "1")
    eventually(lambda: recorder.renewed)
    blockable = {number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)}
    ours = set(os.listdir("/proc/self/task")) - before
    assert ours
    for thread in ours:
        with open(f"/proc/self/task/{thread}/status") as status:
            [mask] = [line.split()[1] for line in status if line.startswith("SigBlk")]
        assert {number for number in blockable if not int(mask, 16) >> (number - 1) & 1} == set()
    plugin.job_finish(lock, "completed")
    plugin.stop()


def test_a_lock_taken_in_one_greenlet_or_thread_is_given_back_in_another(server, client, pm, recorder):
    plugin = start(pm, server)
    lock = gevent.spawn(plugin.job_start, "mail", "1").get(timeout=10)
    highest = 0
    until = time.monotonic() + 3 * LOCK_MS / 1000
    while time.monotonic() < until:  # more than ten renewals
        highest = max(highest, client.pttl("emq:mail:1:lock"))
        gevent.sleep(0.01)
    assert 0 < highest <= LOCK_MS  # set back to the whole duration, never added to it
    assert gevent.spawn(plugin.job_finish, lock, "completed").get(timeout=10).value == "released"

    native = plugin.job_start("mail", "2")
    results = []
    start_thread(lambda: results.append(plugin.job_finish(native, "completed").value))
    eventually(lambda: results)
    assert results == ["released"]
    assert client.keys("*lock") == []
    plugin.stop()
