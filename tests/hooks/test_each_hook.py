"""One test for each hook, and what a bad plugin may and may not do to the others."""

from __future__ import annotations

import logging
from typing import Any

import gevent
import pytest
import redis
from faults.waiting import eventually

from echomq_plugin import FinishResult, LockHeldError, StalledJob, hookimpl_for
from echomq_plugin.entries import EntryData
from echomq_plugin.errors import NobodyPutBackError, OptionError
from hooks.conftest import TICK, App

PASS = 15_000


def _leave_a_dead_workers_job(app: App, job_id: str = "7", count: int = 0) -> None:
    app.connection.sadd("emq:queues", "mail")
    app.connection.hset("emq:mail:held", job_id, "dead-token")
    app.connection.hset("emq:mail:held-data", job_id, EntryData("dead:1", 0, "d1", b"body").pack())
    if count:
        app.connection.hset("emq:mail:stalled-count", job_id, f"{count} older 1700000000000")


def _sweep_twice(app: App) -> None:
    for _ in range(2):
        app.connection.delete("emq:mail:held-check")  # its life is counted by the server's clock
        app.clock.advance(PASS)


# -- the host calls ----------------------------------------------------------------------------------------------------


def test_hook_echomq_job_start(app: App) -> None:
    lock = app.start_job("42", delivery="d1", payload=b"body")

    assert (lock.queue, lock.job_id, lock.delivery, lock.fence) == ("mail", "42", "d1", 1)
    assert app.connection.get("emq:mail:42:lock") == lock.token.encode()
    assert 0 < app.connection.pttl("emq:mail:42:lock") <= 30_000
    assert app.plugin.manager.get_tracked_job_ids() == ["42"]
    assert lock.believed
    assert lock.confirm()


@pytest.mark.parametrize(
    ("running", "asking", "same"),
    [("d1", "d1", True), ("d1", "d2", False), (None, None, False), ("d1", None, False), (None, "d1", False)],
)
def test_a_denied_start_says_whether_its_delivery_may_be_dropped(
    app: App, running: str | None, asking: str | None, same: bool
) -> None:
    app.start_job("42", delivery=running)

    with pytest.raises(LockHeldError) as denied:
        app.start_job("42", delivery=asking)

    assert denied.value.same_delivery is same
    assert 1 <= denied.value.retry_in_ms <= 1_000


def test_a_lock_without_a_life_asks_for_a_whole_pause(app: App) -> None:
    app.connection.set("emq:mail:42:lock", "for ever")

    with pytest.raises(LockHeldError) as denied:
        app.start_job("42")

    assert denied.value.retry_in_ms == 1_000


def test_a_given_token_is_kept_and_never_taken_or_deleted(app: App) -> None:
    app.connection.set("emq:mail:42:lock", "the hosts own", px=9_000)

    lock = app.start_job("42", token="the hosts own")

    app.clock.advance(0)
    app.recording.wait_for("echomq_locks_renewed")  # at once: its age is unknown
    assert lock.given
    assert not app.connection.exists("emq:mail:held")
    assert app.pm.hook.echomq_job_finish(lock=lock, outcome="completed") is FinishResult.RELEASED
    assert app.connection.get("emq:mail:42:lock") == b"the hosts own"


def test_hook_echomq_job_finish(app: App) -> None:
    lock = app.start_job("42")

    assert app.pm.hook.echomq_job_finish(lock=lock, outcome="completed") is FinishResult.RELEASED

    assert set(app.connection.keys("emq:mail:*")) <= {b"emq:mail:fence", b"emq:mail:held-check"}
    assert app.plugin.manager.get_active_job_count() == 0
    assert app.pm.hook.echomq_job_finish(lock=lock, outcome="completed") is FinishResult.RELEASED  # again: the same


@pytest.mark.parametrize(
    ("outcome", "entry_stays", "count_stays"),
    [
        ("completed", False, False),
        ("failed", False, False),
        ("cancelled", False, False),
        ("retry", False, True),
        ("requeued", False, True),
        ("interrupted", True, True),
    ],
)
def test_what_stays_of_a_job_depends_on_its_outcome(
    app: App, outcome: str, entry_stays: bool, count_stays: bool
) -> None:
    app.connection.hset("emq:mail:stalled-count", "42", "1 dead 1700000000000")
    lock = app.start_job("42")

    app.pm.hook.echomq_job_finish(lock=lock, outcome=outcome)

    assert not app.connection.exists("emq:mail:42:lock")
    assert app.connection.hexists("emq:mail:held", "42") == entry_stays
    assert app.connection.hexists("emq:mail:stalled-count", "42") == count_stays


def test_an_outcome_that_does_not_exist_is_an_error_and_the_job_goes_on(app: App) -> None:
    lock = app.start_job("42")

    with pytest.raises(OptionError, match="outcome='done': must be one of cancelled, completed, failed"):
        app.pm.hook.echomq_job_finish(lock=lock, outcome="done")

    assert lock.believed


def test_the_job_of_a_stolen_lock_finishes_as_lost_and_touches_nothing(app: App) -> None:
    lock = app.start_job("42")
    app.connection.set("emq:mail:42:lock", "another", px=30_000)

    assert app.pm.hook.echomq_job_finish(lock=lock, outcome="completed") is FinishResult.LOST

    assert app.connection.get("emq:mail:42:lock") == b"another"


# -- the library calls -------------------------------------------------------------------------------------------------


def test_hook_echomq_lock_lost(app: App) -> None:
    locks = {job_id: app.start_job(job_id) for job_id in ("1", "2", "3")}
    app.connection.delete("emq:mail:1:lock")
    app.connection.set("emq:mail:2:lock", "another")

    app.clock.advance(TICK)

    [call] = app.recording.wait_for("echomq_lock_lost")  # one call for the tick and queue
    assert call["queue"] == "mail"
    assert sorted((lost.job_id, lost.token, lost.reason, lost.held_for_ms) for lost in call["lost"]) == [
        ("1", locks["1"].token, "missing", TICK),
        ("2", locks["2"].token, "taken", TICK),
    ]
    assert locks["1"].lost in call["lost"]
    assert not locks["1"].believed
    assert locks["3"].believed
    app.clock.advance(TICK)
    assert len(app.recording.of("echomq_lock_lost")) == 1


def test_hook_echomq_locks_renewed(app: App) -> None:
    app.start_job("1")
    app.start_job("2")

    app.clock.advance(TICK)

    assert app.recording.wait_for("echomq_locks_renewed") == [{"queue": "mail", "job_ids": ("1", "2")}]


def test_hook_echomq_renewal_failed(app: App) -> None:
    app.start_job("1")
    app.connection.delete("emq:mail:1:lock")
    app.connection.rpush("emq:mail:1:lock", "no lock at all")

    app.clock.advance(TICK)

    call = app.recording.wait_for("echomq_renewal_failed")[0]
    assert (call["queue"], call["job_ids"]) == ("mail", ("1",))
    assert "WRONGTYPE" in str(call["error"])
    assert 450 <= call["retry_in_ms"] <= 550
    assert call["at_risk_in_ms"] == 30_000 - TICK
    assert app.recording.lost == []


def test_hook_echomq_check_failed(app: App) -> None:
    app.connection.delete("emq:queues")
    app.connection.set("emq:queues", "no set at all")

    app.clock.advance(PASS)

    call = app.recording.wait_for("echomq_check_failed")[0]
    assert call["queue"] is None
    assert "WRONGTYPE" in str(call["error"])
    assert call["retry_in_ms"] == 1_000


def test_hook_echomq_job_stalled(app: App) -> None:
    _leave_a_dead_workers_job(app)

    _sweep_twice(app)

    [call] = app.recording.wait_for("echomq_job_stalled")
    assert call == {"job": StalledJob("mail", "7", b"body", "d1", 1, "dead:1")}


def test_the_first_true_ends_the_calls_of_job_stalled(app: App) -> None:
    asked: list[str] = []

    class NotMine:
        @hookimpl_for(app.pm)(tryfirst=True)
        def echomq_job_stalled(self, job: StalledJob) -> None:
            asked.append("not mine")

    class TooLate:
        @hookimpl_for(app.pm)(trylast=True)
        def echomq_job_stalled(self, job: StalledJob) -> bool:
            asked.append("too late")
            return True

    app.pm.register(NotMine())
    app.pm.register(TooLate())
    _leave_a_dead_workers_job(app)

    _sweep_twice(app)
    app.recording.wait_for("echomq_job_recovered")

    assert asked == ["not mine"]


def test_when_nobody_puts_back_the_entry_stays_the_count_does_not_move_and_an_error_is_reported(app: App) -> None:
    app.pm.unregister(name="recording")

    class Raising:
        @hookimpl_for(app.pm)
        def echomq_job_stalled(self, job: StalledJob) -> bool:
            raise RuntimeError("no")

    from echomq_plugin.testing import RecordingPlugin

    app.pm.register(Raising())
    recording = RecordingPlugin(app.pm)  # says None
    app.pm.register(recording)
    _leave_a_dead_workers_job(app)

    _sweep_twice(app)

    call = recording.wait_for("echomq_check_failed")[0]
    assert isinstance(call["error"], NobodyPutBackError)
    assert app.connection.hget("emq:mail:held", "7") == b"dead-token"
    assert not app.connection.exists("emq:mail:stalled-count")
    # Free to be claimed again: what is left says that the entry may be relied on, and ended long ago.
    eventually(lambda: app.connection.hgetall("emq:mail:held-claim") == {b"7": b"relied on: dead-token 0"})
    assert recording.of("echomq_job_recovered") == []


def test_hook_echomq_job_recovered(app: App) -> None:
    _leave_a_dead_workers_job(app)

    _sweep_twice(app)

    [call] = app.recording.wait_for("echomq_job_recovered")
    assert call == {"job": StalledJob("mail", "7", b"body", "d1", 1, "dead:1")}
    assert not app.connection.exists("emq:mail:held")


def test_hook_echomq_job_abandoned(app: App) -> None:
    # Row 38: queue, id and count.
    _leave_a_dead_workers_job(app, count=1)

    _sweep_twice(app)

    [call] = app.recording.wait_for("echomq_job_abandoned")
    assert call == {"job": StalledJob("mail", "7", b"body", "d1", 2, "dead:1")}
    assert app.recording.of("echomq_job_stalled") == []
    until = gevent.Timeout(30)
    with until:
        while app.connection.exists("emq:mail:held", "emq:mail:stalled-count"):
            gevent.sleep(0.01)


def test_a_job_whose_giving_up_redis_did_not_answer_is_given_up_again(app: App) -> None:
    failed: list[str] = []

    class Host:
        @hookimpl_for(app.pm)
        def echomq_job_abandoned(self, job: StalledJob) -> None:
            if not failed:
                failed.append(job.job_id)
                raise redis.ConnectionError("the host's own Redis is away")

    app.pm.register(Host())
    _leave_a_dead_workers_job(app, count=1)

    _sweep_twice(app)

    [call] = app.recording.wait_for("echomq_check_failed")
    assert isinstance(call["error"], redis.ConnectionError)
    assert app.connection.hget("emq:mail:held", "7") == b"dead-token"
    # Free to be claimed again, and counted again for the same death.
    eventually(lambda: app.connection.hgetall("emq:mail:held-claim") == {b"7": b"relied on: dead-token 0"})
    _sweep_twice(app)
    eventually(lambda: not app.connection.exists("emq:mail:held"))
    assert [each["job"].stalled_count for each in app.recording.of("echomq_job_abandoned")] == [2, 2]


# -- bad plugins -------------------------------------------------------------------------------------------------------


def test_a_raising_and_a_sleeping_plugin_hide_nothing_and_delay_no_renewal(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    # Row 62.
    called: list[str] = []

    class Raises:
        @hookimpl_for(app.pm)(tryfirst=True)
        def echomq_lock_lost(self, lost: tuple[Any, ...]) -> None:
            called.append("raises")
            raise RuntimeError("a mistake")

    class Sleeps:
        @hookimpl_for(app.pm)(tryfirst=True)
        def echomq_lock_lost(self, lost: tuple[Any, ...]) -> None:
            called.append("sleeps")
            gevent.sleep(20)
            called.append("woke up")

    app.pm.register(Sleeps(), "the sleeper")
    app.pm.register(Raises(), "the raiser")
    for number in range(5):
        app.start_job(f"lost-{number}")
    app.start_job("healthy")
    for number in range(5):
        app.connection.delete(f"emq:mail:lost-{number}:lock")

    with caplog.at_level(logging.ERROR, "echomq_plugin"):
        app.clock.advance(TICK)
        for _ in range(3):
            app.clock.advance(TICK)  # ticks go on while the sleeper sleeps
        app.recording.wait_for("echomq_lock_lost")

    assert called == ["raises", "sleeps"]
    assert sorted(lost.job_id for lost in app.recording.lost) == [f"lost-{number}" for number in range(5)]
    app.recording.wait_for("echomq_locks_renewed", 4)
    assert set(app.recording.renewed_ids) == {"healthy"}
    failures = [record for record in caplog.records if getattr(record, "echomq_event", "") == "hook failed"]
    assert [(record.echomq_plugin_name, record.echomq_hook) for record in failures] == [  # type: ignore[attr-defined]
        ("the raiser", "echomq_lock_lost"),
        ("the sleeper", "echomq_lock_lost"),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), gevent.GreenletExit(), gevent.Timeout()])
def test_whatever_a_hook_raises_stays_with_it(app: App, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Raises:
        @hookimpl_for(app.pm)(tryfirst=True)
        def echomq_locks_renewed(self, queue: str) -> None:
            raise error

    app.pm.register(Raises(), "the raiser")
    app.start_job("42")

    app.clock.advance(TICK)
    app.recording.wait_for("echomq_locks_renewed")
    app.clock.advance(TICK)
    app.recording.wait_for("echomq_locks_renewed", 2)

    assert "'the raiser'" in caplog.text


def test_a_host_whose_cancel_raises_cancels_the_next_job_all_the_same(app: App) -> None:
    cancelled: list[str] = []

    def cancel(lock: Any, lost: Any) -> None:
        cancelled.append(lock.job_id)
        raise RuntimeError("a mistake of the host")

    for job_id in ("1", "2"):
        app.plugin.cancel_with(app.start_job(job_id), cancel)
        app.connection.delete(f"emq:mail:{job_id}:lock")

    app.clock.advance(TICK)
    app.recording.wait_for("echomq_lock_lost")

    assert sorted(cancelled) == ["1", "2"]


def test_jobs_are_cancelled_before_anybody_is_told(app: App) -> None:
    order: list[str] = []

    class Told:
        @hookimpl_for(app.pm)(tryfirst=True)
        def echomq_lock_lost(self, queue: str) -> None:
            order.append("told")

    app.pm.register(Told())
    app.plugin.cancel_with(app.start_job("1"), lambda lock, lost: order.append("cancelled"))
    app.connection.delete("emq:mail:1:lock")

    app.clock.advance(TICK)
    app.recording.wait_for("echomq_lock_lost")

    assert order == ["cancelled", "told"]


def test_the_log_is_a_plugin_that_can_be_blocked(app: App, caplog: pytest.LogCaptureFixture) -> None:
    app.start_job("1")
    app.connection.delete("emq:mail:1:lock")
    app.pm.unregister(name="echomq-log")

    app.clock.advance(TICK)
    app.recording.wait_for("echomq_lock_lost")

    assert "lock lost" not in caplog.text


def test_a_wrapper_of_a_notification_hook_is_never_called_and_hides_nothing(app: App) -> None:
    called: list[str] = []

    class Wraps:
        @hookimpl_for(app.pm)(wrapper=True)
        def echomq_locks_renewed(self, queue: str):
            called.append("wrapper")
            return (yield)

    app.pm.register(Wraps())
    app.start_job("42")

    app.clock.advance(TICK)

    assert app.recording.wait_for("echomq_locks_renewed") == [{"queue": "mail", "job_ids": ("42",)}]
    assert called == []
