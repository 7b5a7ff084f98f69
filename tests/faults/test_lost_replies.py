"""The connection is cut after the server ran the script: what the call did is unknown, and everybody acts so."""

from __future__ import annotations

import time

import pytest

from echomq_plugin import FinishResult, StartUndecidedError
from faults.conftest import LOCK_MS
from faults.proxy import cut_after, cut_before, script, swallow_reply
from faults.waiting import eventually

ACQUIRE, RELEASE, RENEW = script("acquireLock-6"), script("releaseLock-6"), script("extendLocks-1")


@pytest.mark.parametrize("fault", [cut_after, swallow_reply], ids=["cut", "silence"])
def test_a_start_without_an_answer_is_undecided_and_its_lock_is_given_up_by_token(proxy, plugin, client, fault):
    proxy.on(ACQUIRE, fault, times=1)
    with pytest.raises(StartUndecidedError):
        plugin.job_start("mail", "1", payload="p")
    assert client.exists("emq:mail:1:lock")
    eventually(lambda: not client.exists("emq:mail:1:lock") and not client.hexists("emq:mail:held", "1"))
    assert plugin.manager.get_active_job_count() == 0
    assert plugin.job_start("mail", "1").token


def test_a_start_that_never_reached_the_server_is_undecided_and_the_give_up_touches_nobody(proxy, plugin, client):
    proxy.on(ACQUIRE, cut_before, times=1)
    with pytest.raises(StartUndecidedError):
        plugin.job_start("mail", "1")
    client.set("emq:mail:1:lock", "another", px=60_000)
    client.hset("emq:mail:held", "1", "another")
    eventually(lambda: proxy.count(RELEASE) >= 1)
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert client.get("emq:mail:1:lock") == b"another"
    assert client.hget("emq:mail:held", "1") == b"another"


def test_a_give_up_is_repeated_until_it_is_answered(proxy, plugin, client):
    proxy.on(ACQUIRE, cut_after, times=1)
    give_up = proxy.on(RELEASE, cut_before, times=3)
    with pytest.raises(StartUndecidedError):
        plugin.job_start("mail", "1")
    eventually(lambda: give_up.hits == 3)
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert not client.exists("emq:mail:1:lock")


def test_the_stalled_count_of_a_job_outlives_the_give_up_of_an_undecided_start(proxy, plugin, client):
    count = f"1 dead {time.time_ns() // 1_000_000}"  # an old one would be pruned by the first sweep
    client.hset("emq:mail:stalled-count", "1", count)
    proxy.on(ACQUIRE, cut_after, times=1)
    with pytest.raises(StartUndecidedError):
        plugin.job_start("mail", "1")
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert client.hget("emq:mail:stalled-count", "1") == count.encode()


def test_a_lost_renewal_reply_is_reported_as_failed_and_never_as_lost(proxy, plugin, recorder, client):
    lock = plugin.job_start("mail", "1")
    cut = proxy.on(RENEW, cut_after, times=2)
    eventually(lambda: cut.hits == 2)
    eventually(lambda: recorder.renewed)
    assert recorder.lost == []
    assert len(recorder.failed) == 2
    assert set(recorder.failed_ids) == {("1",)}
    assert all(0 < left <= LOCK_MS for left in recorder.at_risk_in_ms)
    assert lock.believed
    assert lock.confirm()
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


@pytest.mark.parametrize("fault", [cut_after, cut_before, swallow_reply], ids=["after", "before", "silence"])
def test_a_release_without_an_answer_is_unknown_and_repeated_until_answered(proxy, plugin, recorder, client, fault):
    lock = plugin.job_start("mail", "1")
    lost = proxy.on(RELEASE, fault, times=3)
    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN
    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert lost.hits == 3
    assert not client.exists("emq:mail:1:lock")
    assert client.hlen("emq:mail:held") == 0
    assert recorder.lost == []


def test_a_lock_whose_release_has_no_answer_yet_is_renewed_all_the_while(proxy, plugin, recorder, client):
    lock = plugin.job_start("mail", "1")
    proxy.on(RELEASE, cut_before)
    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN
    eventually(lambda: len(recorder.renewed) >= 2 * LOCK_MS // (LOCK_MS // 4))
    assert client.get("emq:mail:1:lock") == lock.token.encode()
    assert plugin.manager.get_active_job_count() == 0
    proxy.clear()
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert not client.exists("emq:mail:1:lock")
    assert recorder.lost == []


def test_a_repeated_release_leaves_the_next_run_of_the_job_alone(proxy, plugin, client):
    lock = plugin.job_start("mail", "1")
    proxy.on(RELEASE, cut_after, times=1)
    assert plugin.job_finish(lock, "retry") is FinishResult.UNKNOWN
    again = plugin.job_start("mail", "1")
    eventually(lambda: proxy.count(RELEASE) >= 2)
    eventually(lambda: plugin.manager.is_tracked("1"))
    assert again.confirm()
    assert client.hget("emq:mail:held", "1") == again.token.encode()
    assert plugin.job_finish(again, "completed") is FinishResult.RELEASED


def test_an_interrupted_job_whose_release_had_no_answer_keeps_its_entry(proxy, plugin, client):
    lock = plugin.job_start("mail", "1", payload="p")
    proxy.on(RELEASE, cut_before, times=1)
    assert plugin.job_finish(lock, "interrupted") is FinishResult.UNKNOWN
    eventually(lambda: not client.exists("emq:mail:1:lock"))
    assert client.hget("emq:mail:held", "1") == lock.token.encode()
