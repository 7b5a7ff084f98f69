"""A greenlet that is killed in the middle of a call leaves no lock for ever, and no reply for the next caller."""

from __future__ import annotations

import gevent
import pytest
from faults.proxy import delay, script, swallow_reply
from faults.waiting import eventually

from echomq_plugin import FinishResult, LockOptions, attach
from echomq_plugin.connections import MOST_CALLS_AT_ONCE

ACQUIRE, RELEASE = script("acquireLock-6"), script("releaseLock-6")
PATIENT = LockOptions(lock_duration=60_000, call_limit_ms=10_000, stalled_interval=60_000)
"""No call and no lock ends by itself while a test looks."""


def kill(greenlet):
    greenlet.kill(timeout=10)


def let_the_callers_own_limit_end_it(greenlet):
    greenlet.join(timeout=10)
    assert greenlet.ready()


def limited(function, *arguments):
    with gevent.Timeout(0.05, False):
        return function(*arguments)


def begin(how, function, *arguments):
    return gevent.spawn(limited, function, *arguments) if how == "timeout" else gevent.spawn(function, *arguments)


def end(how, greenlet):
    (let_the_callers_own_limit_end_it if how == "timeout" else kill)(greenlet)


@pytest.fixture(params=["kill", "timeout"])
def how(request):
    return request.param


def replies_are_ones_own(plugin, client):
    """Many calls with different answers on the pool that the killed greenlet used."""
    for number in range(30):
        lock = plugin.job_start("mail", f"after-{number}")
        assert client.get(f"emq:mail:after-{number}:lock") == lock.token.encode()
        assert lock.confirm()
        assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED


@pytest.mark.parametrize("fault", [delay(after_ms=400), swallow_reply], ids=["late", "never"])
def test_a_kill_in_the_middle_of_a_start_leaves_no_lock_and_no_stray_reply(proxy, plugin, client, how, fault):
    gevent.sleep(0)
    rule = proxy.on(ACQUIRE, fault, times=1)
    starting = begin(how, plugin.job_start, "mail", "1")
    eventually(lambda: rule.hits == 1 and client.exists("emq:mail:1:lock"))
    end(how, starting)
    replies_are_ones_own(plugin, client)
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert client.keys("emq:mail:*:lock") == []
    assert client.hlen("emq:mail:held") == 0


@pytest.mark.parametrize(
    "fault", [delay(after_ms=400), swallow_reply, delay(before_ms=250)], ids=["late", "no", "slow"]
)
def test_a_kill_in_the_middle_of_a_finish_gives_the_lock_back_all_the_same(proxy, plugin, recorder, client, how, fault):
    gevent.sleep(0)
    lock = plugin.job_start("mail", "1")
    rule = proxy.on(RELEASE, fault, times=1)
    finishing = begin(how, plugin.job_finish, lock, "completed")
    eventually(lambda: rule.hits == 1)
    end(how, finishing)
    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN
    replies_are_ones_own(plugin, client)
    eventually(lambda: plugin.manager.wait_until_idle(0))
    assert client.keys("emq:mail:*:lock") == []
    assert client.hlen("emq:mail:held") == 0
    assert recorder.lost == []


def test_a_kill_in_the_middle_of_a_job_interrupts_it_and_keeps_its_entry_for_the_sweep(proxy, plugin, client):
    gevent.sleep(0)
    running = gevent.event.Event()

    def job():
        with plugin.job("1", payload="p"):
            running.set()
            gevent.sleep(30)

    greenlet = gevent.spawn(job)
    assert running.wait(10)
    kill(greenlet)
    assert not client.exists("emq:mail:1:lock")
    assert client.hexists("emq:mail:held", "1")
    assert plugin.manager.get_active_job_count() == 0


def test_killing_all_who_wait_for_their_turn_frees_every_turn(proxy, pm, client):
    gevent.sleep(0)
    plugin = attach(pm, proxy.url, "mail", PATIENT)
    plugin.start()
    proxy.on(ACQUIRE, swallow_reply)
    crowd = [gevent.spawn(plugin.job_start, "mail", f"crowd-{number}") for number in range(150)]
    # Nobody's turn ends by itself, and no request is under way: it could take its lock after that was released.
    eventually(lambda: len(client.keys("emq:mail:*:lock")) == MOST_CALLS_AT_ONCE)
    gevent.killall(crowd, timeout=10)
    proxy.clear()
    eventually(lambda: plugin.manager.wait_until_idle(0))
    replies_are_ones_own(plugin, client)
    assert client.keys("emq:mail:*:lock") == []
    plugin.stop(timeout_ms=0)


def test_two_greenlets_that_finish_one_job_at_once_give_its_lock_back_once(proxy, plugin, client):
    gevent.sleep(0)
    lock = plugin.job_start("mail", "1")
    proxy.on(RELEASE, delay(after_ms=100))
    finishing = [gevent.spawn(plugin.job_finish, lock, "completed") for _ in range(3)]
    results = {greenlet.get(timeout=10) for greenlet in finishing}
    assert FinishResult.LOST not in results
    assert proxy.count(RELEASE) == 1
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
