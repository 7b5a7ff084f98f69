"""
TrackedLocks: which locks a worker holds, and what is due, renewed, lost or past its deadline.

Pure bookkeeping: no Redis, no gevent, and no clock of its own. Every time is an int of ms handed in by the caller, all
from one monotonic clock. Not thread-safe: the caller holds a lock around every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from echomq_plugin.events import LostLock, LostReason


@dataclass(slots=True, eq=False)
class TrackedLock:
    """
    One lock that is to be kept alive.

    Attributes:
        queue: the queue.
        job_id: the job.
        token: the token under which the lock was taken; a new token makes a new TrackedLock.
        tracked_at: when tracking began, in ms.
        renewed_at: just before the last call was sent that certainly renewed (or took) the lock, in ms.
        renew_now: its age is unknown, so it is due whatever ``renewed_at`` says.
        entry: the entry's data, or None where the host took the lock and there is no entry of ours.
        ended: the job has ended and its release waits for an answer: renewed still, but no loss is reported.
        entry_stays: it has ended, but was interrupted: its entry is there for the sweep to bring it back.
        over_held: ``max_hold_ms`` has passed and was reported.
        in_table: it is tracked now; kept by the table, so that settling a large batch needs no look-ups.

    """

    queue: str
    job_id: str
    token: str
    tracked_at: int
    renewed_at: int
    renew_now: bool = False
    entry: bytes | None = None
    ended: bool = False
    entry_stays: bool = False
    over_held: bool = False
    in_table: bool = True


class TrackedLocks:
    """
    The table of a worker's locks.

    Args:
        lock_duration: life of a lock after a renewal, in ms. A lock whose last confirmed renewal is that long ago can
            no longer be trusted.
        threshold: a lock is due when more than this has passed since its last confirmed renewal, in ms (protocol:
            half of ``lock_renew_time``; strictly more).
        max_hold_ms: after this long in the table a lock is reported once as held too long; None: never.
        hold_grace_ms: how long after that report the lock stays in the table.

    """

    __slots__ = ("_hold_grace_ms", "_locks", "_max_hold_ms", "lock_duration", "threshold")

    def __init__(
        self, *, lock_duration: int, threshold: int, max_hold_ms: int | None = None, hold_grace_ms: int = 0
    ) -> None:
        self.lock_duration = lock_duration
        self.threshold = threshold
        self._max_hold_ms = max_hold_ms
        self._hold_grace_ms = hold_grace_ms
        self._locks: dict[tuple[str, str], TrackedLock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def active_job_ids(self) -> list[str]:
        """Return the ids of all tracked jobs that have not ended, oldest first."""
        return [lock.job_id for lock in self._locks.values() if not lock.ended]

    def get(self, queue: str, job_id: str) -> TrackedLock | None:
        """Return the lock tracked for a job, or None."""
        return self._locks.get((queue, job_id))

    def holds(self, queue: str, job_id: str, token: str) -> bool:
        """Tell whether this very lock is tracked, and not only another one of the same job."""
        lock = self._locks.get((queue, job_id))
        return lock is not None and lock.token == token

    def believes(self, queue: str, job_id: str, token: str, now: int) -> bool:
        """Tell whether this very lock is tracked and its local deadline lies ahead."""
        lock = self._locks.get((queue, job_id))
        return lock is not None and lock.token == token and now < lock.renewed_at + self.lock_duration

    def track(
        self,
        queue: str,
        job_id: str,
        token: str,
        *,
        now: int,
        renewed_at: int | None = None,
        renew_now: bool = False,
        entry: bytes | None = None,
    ) -> TrackedLock:
        """
        Begin to keep a lock alive. The same token again changes nothing; another token replaces the lock.

        Args:
            queue: the queue.
            job_id: the job.
            token: the lock's token.
            now: the time, in ms.
            renewed_at: just before the call that took the lock was sent; ``now`` where that is not known.
            renew_now: the lock's age is unknown, so it is due at once.
            entry: the entry's data.

        """
        key = (queue, job_id)
        tracked = self._locks.get(key)
        if tracked is not None and tracked.token == token:
            return tracked
        # A new token goes to the end of the table: it is the youngest.
        if tracked is not None:
            self._remove(tracked)
        since = now if renewed_at is None else renewed_at
        lock = self._locks[key] = TrackedLock(queue, job_id, token, now, since, renew_now, entry)
        return lock

    def untrack(self, queue: str, job_id: str, token: str | None = None) -> TrackedLock | None:
        """
        Stop keeping a lock alive and return it; None when nothing was tracked.

        Args:
            queue: the queue.
            job_id: the job.
            token: only this very lock; None: whichever lock the job has (protocol: by id alone).

        """
        lock = self._locks.get((queue, job_id))
        if lock is None or (token is not None and lock.token != token):
            return None
        self._remove(lock)
        return lock

    def due(self, now: int) -> list[TrackedLock]:
        """Return the locks to renew now, those that were renewed longest ago first."""
        threshold = self.threshold
        due = [lock for lock in self._locks.values() if lock.renew_now or lock.renewed_at + threshold < now]
        due.sort(key=attrgetter("renewed_at"))
        return due

    def settle(self, sent: Iterable[TrackedLock], failed_ids: Iterable[str], sent_at: int) -> Settled:
        """
        Take in one reply to one batch.

        Each id counts only if the same token is still tracked: a job that ended, or was started again, while the call
        was under way is neither renewed nor failed.

        Args:
            sent: the locks of the batch, all of one queue.
            failed_ids: the ids that the script did not renew.
            sent_at: just before the call was sent, in ms.

        """
        failed = frozenset(failed_ids)
        locks = self._locks
        renewed: list[str] = []
        suspects: list[TrackedLock] = []
        for lock in sent:
            job_id = lock.job_id
            current = lock
            if not lock.in_table:
                same = locks.get((lock.queue, job_id))
                if same is None or same.token != lock.token:
                    continue
                current = same
            if job_id in failed:
                suspects.append(current)
                continue
            # Two calls can be under way; the later send is the better confirmation.
            if current.renewed_at < sent_at:  # noqa: PLR1730  # a call of `max` would be a third of this loop
                current.renewed_at = sent_at
            current.renew_now = False
            renewed.append(job_id)
        return Settled(renewed, suspects)

    def lose(
        self, lost: Sequence[tuple[TrackedLock, LostReason]], now: int, hub_blocked_ms: int = 0
    ) -> list[tuple[str, LostLock]]:
        """
        Untrack locks that are lost and return (queue, report) for those that are to be reported.

        A lock that is no longer tracked under its token was untracked, or reported before: it is left out. So is the
        lock of a job that has ended: nobody is left to act on it.
        """
        reports: list[tuple[str, LostLock]] = []
        for lock, reason in lost:
            # What is tracked under this token may be newer than what was sent: it alone says when tracking began.
            current = self.untrack(lock.queue, lock.job_id, lock.token)
            if current is not None and not current.ended:
                reports.append((lock.queue, _report(current, reason, now, hub_blocked_ms)))
        return reports

    def expired(self, now: int, hub_blocked_ms: int = 0) -> list[tuple[str, LostLock]]:
        """
        Untrack the locks whose local deadline has come, and return (queue, report) for each.

        A deadline that came only because the pass is late (the process was stopped, the hub was blocked) does not
        count yet: the server, which was not asked meanwhile, is asked first, and knows whether the lock was taken.
        """
        on_time = now - hub_blocked_ms
        duration = self.lock_duration
        gone = [lock for lock in self._locks.values() if lock.renewed_at + duration <= on_time]
        return self.lose([(lock, "expired") for lock in gone], now, hub_blocked_ms)

    def held_too_long(self, now: int, hub_blocked_ms: int = 0) -> list[tuple[str, LostLock]]:
        """
        Return (queue, report) for each lock that has reached ``max_hold_ms``, once; untrack those past their grace.

        The lock stays tracked while its job is being cancelled, so that the job does not run twice meanwhile.
        """
        if self._max_hold_ms is None:
            return []
        reports: list[tuple[str, LostLock]] = []
        for lock in list(self._locks.values()):
            limit = lock.tracked_at + self._max_hold_ms
            if now < limit or lock.ended:
                continue
            if not lock.over_held:
                lock.over_held = True
                reports.append((lock.queue, _report(lock, "held_too_long", now, hub_blocked_ms)))
            if limit + self._hold_grace_ms <= now:
                self._remove(lock)
        return reports

    def next_wakeup(self) -> int | None:
        """Return the earliest time at which a lock reaches a deadline or its longest hold, in ms; None if none will."""
        times = [lock.renewed_at + self.lock_duration for lock in self._locks.values()]
        if self._max_hold_ms is not None:
            for lock in self._locks.values():
                grace = self._hold_grace_ms if lock.over_held else 0
                if not lock.ended:
                    times.append(lock.tracked_at + self._max_hold_ms + grace)
        return min(times, default=None)

    def _remove(self, lock: TrackedLock) -> None:
        del self._locks[lock.queue, lock.job_id]
        lock.in_table = False


@dataclass(frozen=True, slots=True)
class Settled:
    """
    What one reply says.

    Attributes:
        renewed: ids of the locks whose renewal is confirmed.
        suspects: locks that the script did not renew and that are still tracked under the token that was sent.

    """

    renewed: list[str]
    suspects: list[TrackedLock]


def _report(lock: TrackedLock, reason: LostReason, now: int, hub_blocked_ms: int) -> LostLock:
    return LostLock(lock.job_id, lock.token, reason, now - lock.tracked_at, hub_blocked_ms)
