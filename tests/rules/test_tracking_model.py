"""TrackedLocks against a plain model: any interleaving of track, untrack, calls, replies, lost replies and time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echomq_plugin.events import LostLock
from echomq_plugin.tracking import TrackedLock, TrackedLocks

DURATION = 100
THRESHOLD = 25
GRACE = 30

QUEUES = st.sampled_from(["mail", "video"])
JOBS = st.sampled_from(["1", "2", "3"])
TOKENS = st.sampled_from(["a", "b", "c"])

numbers = count()


@dataclass
class ModelLock:
    """What a person with pencil and paper would note for one lock."""

    token: str
    tracked_at: int
    renewed_at: int
    renew_now: bool
    ended: bool = False
    over_held: bool = False
    number: int = field(default_factory=lambda: next(numbers))


@dataclass
class Call:
    """A batch under way: no reply yet."""

    sent: list[TrackedLock]
    sent_at: int


class TrackedLocksMachine(RuleBasedStateMachine):
    """Every rule does the same thing to the table and to the model, and compares what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000
        self.model: dict[tuple[str, str], ModelLock] = {}
        self.under_way: list[Call] = []
        self.suspects: list[TrackedLock] = []
        self.reports: Counter[tuple[int, str]] = Counter()

    @initialize(max_hold=st.sampled_from([None, 60, 300]))
    def begin(self, max_hold: int | None) -> None:
        self.max_hold = max_hold
        self.locks = TrackedLocks(
            lock_duration=DURATION, threshold=THRESHOLD, max_hold_ms=max_hold, hold_grace_ms=GRACE
        )

    # -- what hosts do -----------------------------------------------------------------------------------------------

    @rule(queue=QUEUES, job=JOBS, token=TOKENS, taken_ago=st.integers(0, 20), renew_now=st.booleans())
    def track(self, queue: str, job: str, token: str, taken_ago: int, renew_now: bool) -> None:
        renewed_at = self.now - taken_ago
        self.locks.track(queue, job, token, now=self.now, renewed_at=renewed_at, renew_now=renew_now)
        old = self.model.get((queue, job))
        if old is None or old.token != token:
            self.model.pop((queue, job), None)
            self.model[queue, job] = ModelLock(token, self.now, renewed_at, renew_now)

    @rule(queue=QUEUES, job=JOBS, token=TOKENS)
    def track_without_knowing_when_it_was_taken(self, queue: str, job: str, token: str) -> None:
        self.track(queue, job, token, 0, False)

    @rule(queue=QUEUES, job=JOBS)
    def untrack_by_id(self, queue: str, job: str) -> None:
        gone = self.locks.untrack(queue, job)
        known = self.model.pop((queue, job), None)
        assert (gone is None) == (known is None)

    @rule(queue=QUEUES, job=JOBS, token=TOKENS)
    def untrack_by_token(self, queue: str, job: str, token: str) -> None:
        gone = self.locks.untrack(queue, job, token)
        known = self.model.get((queue, job))
        if known is not None and known.token == token:
            del self.model[queue, job]
            assert gone is not None
            assert gone.token == token
        else:
            assert gone is None

    @rule(queue=QUEUES, job=JOBS)
    def the_job_ends_and_its_release_is_under_way(self, queue: str, job: str) -> None:
        lock = self.locks.get(queue, job)
        if lock is not None:
            lock.ended = True
            self.model[queue, job].ended = True

    # -- what the renewal greenlet does ------------------------------------------------------------------------------

    @rule(ms=st.one_of(st.integers(0, 5), st.integers(0, 2 * DURATION)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @rule()
    def tick(self) -> None:
        due = self.locks.due(self.now)
        expected = {key for key, lock in self.model.items() if lock.renew_now or lock.renewed_at + THRESHOLD < self.now}
        assert {(lock.queue, lock.job_id) for lock in due} == expected
        assert [lock.renewed_at for lock in due] == sorted(lock.renewed_at for lock in due)
        for queue in {lock.queue for lock in due}:
            self.under_way.append(Call([lock for lock in due if lock.queue == queue], self.now))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_reply_comes(self, data: st.DataObject) -> None:
        call = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1), label="call"))
        failed = data.draw(st.sets(st.sampled_from([lock.job_id for lock in call.sent])), label="failed ids")
        settled = self.locks.settle(call.sent, failed, call.sent_at)

        renewed, suspects = [], []
        for lock in call.sent:
            known = self.model.get((lock.queue, lock.job_id))
            if known is None or known.token != lock.token:
                continue  # ended, or started again: the reply is about something else
            if lock.job_id in failed:
                suspects.append((lock.queue, lock.job_id, lock.token))
            else:
                renewed.append(lock.job_id)
                known.renewed_at = max(known.renewed_at, call.sent_at)
                known.renew_now = False
        assert settled.renewed == renewed
        assert [(lock.queue, lock.job_id, lock.token) for lock in settled.suspects] == suspects
        self.suspects += settled.suspects

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def a_reply_is_lost(self, data: st.DataObject) -> None:
        # Nothing is told to the table, so nothing may move: the invariants see to that.
        self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1), label="call"))

    @precondition(lambda self: self.suspects)
    @rule(data=st.data(), reason=st.sampled_from(["missing", "taken", "ours"]))
    def a_suspect_is_looked_up(self, data: st.DataObject, reason: str) -> None:
        lock = self.suspects.pop(data.draw(st.integers(0, len(self.suspects) - 1), label="suspect"))
        if reason == "ours":
            return  # kept
        reports = self.locks.lose([(lock, reason)], self.now, hub_blocked_ms=3)

        known = self.model.get((lock.queue, lock.job_id))
        if known is None or known.token != lock.token:
            assert reports == []
            return
        del self.model[lock.queue, lock.job_id]
        self.expect(reports, {(lock.queue, lock.job_id): known}, reason, hub_blocked_ms=3)

    @rule(late_by=st.one_of(st.just(0), st.integers(0, 2 * DURATION)))
    def deadlines_are_looked_at(self, late_by: int) -> None:
        reports = self.locks.expired(self.now, late_by)
        # Exactly at the deadline, neither a ms earlier nor later. What passed while nobody could look is asked about.
        gone = {key: lock for key, lock in self.model.items() if self.now - late_by >= lock.renewed_at + DURATION}
        for key in gone:
            del self.model[key]
        self.expect(reports, gone, "expired", late_by)

    @rule()
    def long_holds_are_looked_at(self) -> None:
        reports = self.locks.held_too_long(self.now)
        if self.max_hold is None:
            assert reports == []
            return
        over = {
            key: lock
            for key, lock in self.model.items()
            if self.now >= lock.tracked_at + self.max_hold and not lock.ended
        }
        new = {key: lock for key, lock in over.items() if not lock.over_held}
        for key, lock in over.items():
            lock.over_held = True
            if self.now >= lock.tracked_at + self.max_hold + GRACE:
                del self.model[key]
        self.expect(reports, new, "held_too_long")

    def expect(
        self,
        reports: list[tuple[str, LostLock]],
        locks: dict[tuple[str, str], ModelLock],
        reason: str,
        hub_blocked_ms: int = 0,
    ) -> None:
        told = {(queue, lost.job_id): lost for queue, lost in reports}
        assert len(told) == len(reports)
        assert set(told) == {key for key, lock in locks.items() if not lock.ended}
        for key, lost in told.items():
            known = locks[key]
            assert lost == LostLock(key[1], known.token, reason, self.now - known.tracked_at, hub_blocked_ms)
            self.reports[known.number, "hold" if reason == "held_too_long" else "loss"] += 1

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_reported_twice(self) -> None:
        assert all(times == 1 for times in self.reports.values())

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        if not hasattr(self, "locks"):
            return
        assert len(self.locks) == len(self.model)
        assert self.locks.active_job_ids() == [job for (_, job), lock in self.model.items() if not lock.ended]
        for (queue, job), known in self.model.items():
            lock = self.locks.get(queue, job)
            assert lock is not None
            assert (lock.token, lock.tracked_at, lock.renewed_at, lock.renew_now) == (
                known.token, known.tracked_at, known.renewed_at, known.renew_now,
            )  # fmt: skip
            for token in "abc":
                assert self.locks.holds(queue, job, token) == (token == known.token)
                trusted = token == known.token and self.now < known.renewed_at + DURATION
                assert self.locks.believes(queue, job, token, self.now) == trusted

    @invariant()
    def the_next_wakeup_is_the_first_deadline(self) -> None:
        if not hasattr(self, "locks"):
            return
        times = [lock.renewed_at + DURATION for lock in self.model.values()]
        if self.max_hold is not None:
            times += [
                lock.tracked_at + self.max_hold + (GRACE if lock.over_held else 0)
                for lock in self.model.values()
                if not lock.ended
            ]
        assert self.locks.next_wakeup() == min(times, default=None)


TestTrackedLocksAgainstTheModel = TrackedLocksMachine.TestCase
TestTrackedLocksAgainstTheModel.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
