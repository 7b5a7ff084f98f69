"""Entries: what stays, what goes, and what brings a job back."""

from __future__ import annotations

import time

import gevent
import pytest
from faults.waiting import eventually, let_pass

from echomq_plugin import FinishResult, LockHeldError, LockLostError, LockOptions, attach
from echomq_plugin.errors import NobodyPutBackError
from echomq_plugin.native import native_sleep, start_thread

LOCK_MS = 1_500
COUNT = f"1 older {time.time_ns() // 1_000_000}".encode()


@pytest.fixture
def started(server, client, pm, recorder):
    plugins = []

    def start(**options):
        settings = {"lock_duration": LOCK_MS, "stalled_interval": 400, **options}
        plugin = attach(pm, server.url, "mail", LockOptions(**settings))
        gevent.sleep(0)
        plugin.start()
        plugins.append(plugin)
        return plugin

    yield start
    for plugin in plugins:
        plugin.stop(timeout_ms=0)


def die(client, job_id="1", token="dead"):
    """Leave what a worker leaves that was killed a lock duration ago."""
    client.hset("emq:mail:held-data", job_id, b"")
    client.hset("emq:mail:held", job_id, token)


def test_when_nobody_puts_a_job_back_its_entry_stays_its_count_too_and_an_error_is_reported(started, client, recorder):
    client.hset("emq:mail:stalled-count", "1", COUNT)
    die(client)
    recorder.put_back = False
    started(max_stalled_count=5)
    eventually(lambda: len(recorder.check_failed) >= 2)
    assert all(isinstance(error, NobodyPutBackError) for error in recorder.check_failed)
    assert client.hget("emq:mail:held", "1") == b"dead"
    # Free to be claimed again; the mark keeps the entry, should its start turn out undecided.
    eventually(lambda: client.hget("emq:mail:held-claim", "1") == b"relied on: dead 0")
    assert client.hget("emq:mail:stalled-count", "1").split()[0] == b"1"
    assert recorder.recovered == recorder.abandoned == []
    recorder.put_back = True
    eventually(lambda: recorder.recovered)
    assert recorder.recovered[0].stalled_count == 2
    assert client.hlen("emq:mail:held") == 0


@pytest.mark.parametrize("answer", ["yes", 1, None, "raise"])
def test_only_true_means_put_back(started, client, recorder, answer):
    def put_back(job):
        if answer == "raise":
            raise ValueError("no")
        return answer

    recorder.put_back = put_back
    die(client)
    started()
    eventually(lambda: recorder.check_failed)
    assert client.hexists("emq:mail:held", "1")
    assert recorder.recovered == []


def test_a_job_that_has_started_again_keeps_its_new_entry_when_its_recovery_ends(started, client, recorder):
    restarted = []

    def put_back(job):
        restarted.append(plugin.job_start("mail", job.job_id, payload="again"))
        return True

    recorder.put_back = put_back
    die(client)
    plugin = started()
    eventually(lambda: recorder.recovered)
    [lock] = restarted
    assert client.hget("emq:mail:held", "1") == lock.token.encode()
    assert lock.confirm()
    let_pass(1_000)
    assert len(restarted) == 1
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
    assert client.hlen("emq:mail:held") == client.hlen("emq:mail:held-data") == client.hlen("emq:mail:held-claim") == 0


@pytest.mark.parametrize("forgetful", ["flushall", "restart"])
def test_a_job_whose_lock_and_entry_the_server_forgot_is_lost_once_and_comes_back(
    started, client, recorder, forgetful, server
):
    put_back = []
    recorder.put_back = lambda job: put_back.append((job.job_id, job.payload)) is None
    plugin = started()
    lock = plugin.job_start("mail", "1", payload="p")
    if forgetful == "flushall":
        client.flushall()
    else:
        client.flushall()
        client.script_flush()
    eventually(lambda: recorder.lost)
    eventually(lambda: put_back)
    let_pass(1_000)
    assert recorder.lost == [("mail", "1", "missing")]
    assert put_back == [("1", "p")]
    assert not lock.believed
    assert plugin.job_finish(lock, "completed") is FinishResult.LOST


def test_an_interrupted_job_keeps_its_entry_and_comes_back(started, client, recorder):
    put_back = []
    recorder.put_back = lambda job: put_back.append((job.job_id, job.payload)) is None
    plugin = started()
    lock = plugin.job_start("mail", "1", payload="p")
    assert plugin.job_finish(lock, "interrupted") is FinishResult.RELEASED
    assert not client.exists("emq:mail:1:lock")
    eventually(lambda: put_back)
    assert put_back == [("1", "p")]


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_a_finished_job_leaves_nothing(started, client, outcome):
    plugin = started()
    client.hset("emq:mail:stalled-count", "1", COUNT)
    lock = plugin.job_start("mail", "1")
    assert plugin.job_finish(lock, outcome) is FinishResult.RELEASED
    left = {key.decode() for key in client.keys("emq:mail:*")} - {"emq:mail:held-check", "emq:mail:fence"}
    assert left == set()


@pytest.mark.parametrize("outcome", ["retry", "requeued"])
def test_a_job_that_comes_back_keeps_its_count(started, client, outcome):
    plugin = started()
    client.hset("emq:mail:stalled-count", "1", COUNT)
    lock = plugin.job_start("mail", "1")
    assert plugin.job_finish(lock, outcome) is FinishResult.RELEASED
    assert client.hget("emq:mail:stalled-count", "1") == COUNT
    assert client.hlen("emq:mail:held") == 0


def test_only_the_very_same_delivery_of_a_running_job_may_be_dropped(started, client):
    plugin = started()
    lock = plugin.job_start("mail", "1", delivery="first")
    for delivery, same in (("first", True), ("its own retry", False), (None, False)):
        with pytest.raises(LockHeldError) as held:
            plugin.job_start("mail", "1", delivery=delivery)
        assert held.value.same_delivery is same
        assert 0 < held.value.retry_in_ms <= plugin.options.denied_pause_ms
    # An entry that does not bear the lock's token vouches for nothing.
    client.hset("emq:mail:held", "1", "older")
    with pytest.raises(LockHeldError) as held:
        plugin.job_start("mail", "1", delivery="first")
    assert not held.value.same_delivery
    plugin.job_finish(lock, "completed")


def test_a_drain_renews_until_the_last_job_has_ended(started, client, recorder):
    # Case 35: the job needs two lock durations more.
    plugin = started()
    lock = plugin.job_start("mail", "1")
    finished = []

    def work():
        native_sleep(2 * LOCK_MS / 1000)
        finished.append((lock.confirm(), plugin.job_finish(lock, "completed")))

    start_thread(work)
    assert plugin.stop(timeout_ms=None)
    assert finished == [(True, FinishResult.RELEASED)]
    assert recorder.lost == []
    assert client.keys("emq:mail:*:lock") == []


def test_a_job_that_hangs_is_cancelled_at_its_longest_hold_with_a_report_of_its_own(started, client, recorder):
    # Case 11, at a fiftieth of its time.
    plugin = started(max_hold_ms=1_200, stalled_interval=60_000)
    never = gevent.event.Event()

    def work():
        with plugin.job("1"):
            never.wait(60)

    with pytest.raises(LockLostError) as lost:
        gevent.spawn(work).get(timeout=30)
    assert lost.value.lost.reason == "held_too_long"
    assert lost.value.lost.held_for_ms >= 1_200
    eventually(lambda: recorder.lost)
    assert recorder.lost == [("mail", "1", "held_too_long")]
    assert not client.exists("emq:mail:1:lock")
    assert plugin.manager.get_active_job_count() == 0


def test_a_job_that_cannot_be_cancelled_keeps_its_lock_for_the_grace_and_no_longer(started, client, recorder):
    plugin = started(max_hold_ms=800, max_hold_grace_ms=1_000, stalled_interval=60_000)
    lock = plugin.job_start("mail", "1")
    eventually(lambda: recorder.lost)
    assert lock.confirm()  # its job may still be running
    eventually(lambda: not plugin.manager.is_tracked("1"))
    eventually(lambda: not client.exists("emq:mail:1:lock"))
    let_pass(300)
    assert recorder.lost == [("mail", "1", "held_too_long")]
    assert plugin.job_finish(lock, "interrupted") in (FinishResult.RELEASED, FinishResult.LOST)


def test_without_a_longest_hold_a_hung_job_holds_its_lock_for_ever(started, client, recorder):
    plugin = started()
    lock = plugin.job_start("mail", "1")
    let_pass(3 * LOCK_MS)
    assert lock.confirm()
    assert recorder.lost == []
