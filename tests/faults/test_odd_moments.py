"""Stops, attachments and log handlers at odd moments: every lock is renewed, and nothing given back is called lost."""

from __future__ import annotations

import logging

import gevent
import pytest

from echomq_plugin import FinishResult, LockOptions, attach
from faults.conftest import LOCK_MS, OPTIONS
from faults.proxy import delay, script
from faults.waiting import eventually, let_pass

ACQUIRE = script("acquireLock-6")


def test_a_job_whose_start_was_under_way_during_a_stop_is_renewed_all_the_same(proxy, client, pm, recorder):
    plugin = attach(pm, proxy.url, "mail", LockOptions(lock_duration=LOCK_MS, stalled_interval=60_000))
    plugin.start()
    on_its_way = proxy.on(ACQUIRE, delay(after_ms=200), times=1)
    starting = gevent.spawn(plugin.job_start, "mail", "42")
    eventually(lambda: on_its_way.hits)

    assert plugin.stop()  # nothing is tracked yet
    lock = starting.get()
    let_pass(2 * LOCK_MS)

    assert client.get("emq:mail:42:lock") == lock.token.encode()
    assert recorder.lost == []
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
    assert plugin.stop()


def test_a_job_that_ends_through_a_later_attachment_is_not_called_lost_by_the_one_that_renews_it(
    proxy, client, pm, recorder
):
    first = attach(pm, proxy.url, "mail", OPTIONS)
    lock = pm.hook.echomq_job_start(queue="mail", job_id="42", delivery=None, payload=None, token=None)
    first.detach(pm)
    second = attach(pm, proxy.url, "mail", OPTIONS)
    cancelled = []
    second.cancel_with(lock, lambda *_: cancelled.append(1))

    assert pm.hook.echomq_job_finish(lock=lock, outcome="completed") is FinishResult.RELEASED

    assert first.manager.get_tracked_job_ids() == []
    let_pass(LOCK_MS // 2)
    assert recorder.lost == cancelled == []
    assert first.stop()
    assert second.stop()


@pytest.mark.parametrize("side", ["auto", "native"])
def test_a_log_handler_that_raises_anything_ends_no_lane(proxy, client, pm, recorder, side):
    class Exits(logging.Handler):
        def emit(self, record):
            raise SystemExit(3)

    from echomq_plugin import hookimpl_for

    class Raises:
        @hookimpl_for(pm)
        def echomq_locks_renewed(self):
            raise SystemExit(2)

    logger, handler = logging.getLogger("echomq_plugin"), Exits()
    pm.register(Raises())
    plugin = attach(pm, proxy.url, "mail", OPTIONS, side=side)
    plugin.start()  # what it warns of is said to whoever starts it
    logger.addHandler(handler)
    try:
        lock = plugin.job_start("mail", "42")
        eventually(lambda: len(recorder.batches) > 1)
        plugin.job_finish(lock, "completed")
        assert plugin.stop()
    finally:
        logger.removeHandler(handler)


def test_a_lock_key_that_is_not_text_costs_no_other_lock_its_renewal(proxy, client, pm, recorder):
    plugin = attach(pm, proxy.url, "mail", LockOptions(lock_duration=LOCK_MS, stalled_interval=60_000))
    bad, *good = [plugin.job_start("mail", str(number)) for number in range(5)]
    client.delete("emq:mail:0:lock")
    client.hset("emq:mail:0:lock", "a", "hash")
    eventually(lambda: recorder.lost)
    let_pass(LOCK_MS)

    assert recorder.lost == [("mail", "0", "expired")]
    assert all(lock.confirm() for lock in good)
    for lock in (bad, *good):
        plugin.job_finish(lock, "completed")
    plugin.stop(timeout_ms=0)


def test_a_claim_or_a_count_in_a_foreign_form_keeps_no_job_from_being_brought_back(proxy, client, pm, recorder):
    client.sadd("emq:queues", "mail")
    client.hset("emq:mail:held", mapping={"1": "dead", "2": "dead", "3": "dead"})
    client.hset("emq:mail:held-data", mapping={"1": b"", "2": b"", "3": b""})
    client.hset("emq:mail:held-claim", "1", "whatever")
    client.hset("emq:mail:stalled-count", "2", "whatever")
    recorder.put_back = True
    plugin = attach(pm, proxy.url, "mail", OPTIONS)
    plugin.start()

    eventually(lambda: len(recorder.recovered) == 3)

    assert client.hlen("emq:mail:held") == 0
    assert plugin.stop()
