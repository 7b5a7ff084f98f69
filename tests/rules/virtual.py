"""A worker in virtual time: the real loop and the real rules, on a clock and a server made of plain Python."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from echomq_plugin.errors import RedisCallError
from echomq_plugin.events import LocksLost, LocksRenewed, LostLock, RenewalFailed, Report
from echomq_plugin.keys import QueueKeys
from echomq_plugin.lock_manager import LockManager
from echomq_plugin.options import LockOptions
from echomq_plugin.scripts import Batch, Ownership

MOST_TURNS_A_MS = 500
"""More than any test plans events for one moment."""


class VirtualClock:
    """Time is a number; what is planned for a moment happens when somebody waits past it."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return self.now

    def at(self, ms: int, event: Callable[[], None]) -> None:
        """Plan an event, ``ms`` from now."""
        heapq.heappush(self._planned, (self.now + ms, next(self._order), event))

    def wait(self, ms: int) -> None:
        """Let time pass, or only as much as there is to the next event: then it happens, and the waiter looks up."""
        until = self.now + ms
        if self._planned and self._planned[0][0] <= until:
            self._happen()
        else:
            self.now = until

    def pass_time(self, ms: int) -> None:
        """Let time pass, all of it, with all that happens in it."""
        until = self.now + ms
        while self._planned and self._planned[0][0] <= until:
            self._happen()
        self.now = until

    def _happen(self) -> None:
        at, _, event = heapq.heappop(self._planned)
        self.now = max(self.now, at)
        event()


@dataclass
class Key:
    """A lock key on the server."""

    token: str
    expires_at: int


@dataclass
class Trip:
    """What happens to one call: how long each way takes, in ms, and whether it, or its reply, is lost."""

    there: int = 0
    back: int = 0
    lost: str = ""  # "", "call" or "reply"


@dataclass
class VirtualServer:
    """Locks and entries, and the calls that the renewal makes, each with its own fate."""

    clock: VirtualClock
    trips: Callable[[], Trip]
    locks: dict[tuple[str, str], Key] = field(default_factory=dict)
    entries: dict[tuple[str, str], str] = field(default_factory=dict)
    renewals: list[tuple[int, str, str]] = field(default_factory=list)
    sent: list[tuple[int, str, str]] = field(default_factory=list)
    calls: int = 0
    blind_to: set[tuple[str, str]] = field(default_factory=set)
    """What the frozen script does not see, as while a cluster moves a slot."""
    released: list[tuple[str, str]] = field(default_factory=list)

    def key(self, queue: str, job_id: str) -> Key | None:
        key = self.locks.get((queue, job_id))
        if key is not None and key.expires_at <= self.clock.now:
            del self.locks[queue, job_id]
            return None
        return key

    def _call(self, operation: str, work: Callable[[], Any]) -> Any:
        self.calls += 1
        trip = self.trips()
        self.clock.pass_time(trip.there)
        result = work() if trip.lost != "call" else None
        self.clock.pass_time(trip.back)
        if trip.lost:
            raise RedisCallError(operation, f"the {trip.lost} was lost")
        return result

    def extend_locks(self, batches: Sequence[Batch], lock_duration: int) -> list[list[str] | RedisCallError]:
        for batch in batches:
            self.sent += [(self.clock.now, batch.keys.queue, job_id) for job_id in batch.job_ids]

        def work() -> list[list[str]]:
            return [
                [
                    job_id
                    for job_id, token in zip(batch.job_ids, batch.tokens, strict=True)
                    if (batch.keys.queue, job_id) in self.blind_to
                    or not self._renew(batch.keys.queue, job_id, token, lock_duration)
                ]
                for batch in batches
            ]

        result: list[list[str] | RedisCallError] = self._call("renew locks", work)
        return result

    def _renew(self, queue: str, job_id: str, token: str, lock_duration: int) -> bool:
        key = self.key(queue, job_id)
        if key is None or key.token != token:
            return False
        key.expires_at = self.clock.now + lock_duration
        self.renewals.append((self.clock.now, queue, job_id))
        return True

    def renew_one(self, keys: QueueKeys, job_id: str, token: str, lock_duration: int) -> bool:
        renewed: bool = self._call("renew a lock", lambda: self._renew(keys.queue, job_id, token, lock_duration))
        return renewed

    def look_up(self, keys: QueueKeys, job_ids: Sequence[str]) -> list[Ownership]:
        def work() -> list[Ownership]:
            found = [self.key(keys.queue, job_id) for job_id in job_ids]
            return [
                Ownership(None if key is None else key.token, self.entries.get((keys.queue, job_id)))
                for key, job_id in zip(found, job_ids, strict=True)
            ]

        result: list[Ownership] = self._call("look up locks", work)
        return result

    def restore_entries(self, keys: QueueKeys, jobs: Sequence[tuple[str, str, bytes, int]]) -> int:
        def work() -> int:
            for job_id, token, _, _ in jobs:
                if self.key(keys.queue, job_id) is None:
                    self.entries.setdefault((keys.queue, job_id), token)
            return len(jobs)

        written: int = self._call("restore entries", work)
        return written

    def release_many(self, releases: Sequence[tuple[QueueKeys, str, str, str, bool]]) -> list[str | RedisCallError]:
        def work() -> list[str]:
            answers = []
            for keys, job_id, token, _, _ in releases:
                key = self.key(keys.queue, job_id)
                if key is not None and key.token == token:
                    del self.locks[keys.queue, job_id]
                if self.entries.get((keys.queue, job_id)) == token:
                    del self.entries[keys.queue, job_id]
                self.released.append((job_id, token))
                answers.append("released")
            return answers

        result: list[str | RedisCallError] = self._call("give locks back", work)
        return result


class _Task:
    """Stands in for the greenlet: its waits are the virtual clock's, and it ends at its time."""

    def __init__(self, clock: VirtualClock, ms: int) -> None:
        self._clock = clock
        self._ends_at = clock.now + ms
        self._turns = Counter[int]()

    @property
    def stopping(self) -> bool:
        self._turns[self._clock.now] += 1
        assert self._turns[self._clock.now] < MOST_TURNS_A_MS, "the loop turns and no time passes"
        return self._clock.now >= self._ends_at

    def wait(self, ms: int) -> None:
        self._clock.wait(min(ms, self._ends_at - self._clock.now))

    def wake(self) -> None:
        """Waits end at every event anyway."""


class VirtualWorker:
    """A LockManager whose loop runs in virtual time, in the thread of the test."""

    def __init__(self, options: LockOptions, trips: Callable[[], Trip] = Trip) -> None:
        self.options = options
        self.clock = VirtualClock()
        self.server = VirtualServer(self.clock, trips)
        self.reports: list[tuple[int, Report]] = []
        self.manager = LockManager(
            "redis://never-connected",
            "mail",
            options=options,
            clock=self.clock,
            outbox=lambda report: self.reports.append((self.clock.now, report)),
        )
        self.manager.scripts = self.server  # type: ignore[assignment]

    def take(self, queue: str, job_id: str, token: str) -> None:
        """Start a job: its lock is on the server, and tracked."""
        self.server.locks[queue, job_id] = Key(token, self.clock.now + self.options.lock_duration)
        self.server.entries[queue, job_id] = token
        self.manager.track(queue, job_id, token, renewed_at=self.clock.now, entry=b"entry")

    def give_back(self, queue: str, job_id: str, token: str) -> None:
        """End a job: untracked, and then gone from the server if it is still there."""
        if self.manager.untrack(queue, job_id, token):
            key = self.server.key(queue, job_id)
            if key is not None and key.token == token:
                del self.server.locks[queue, job_id]
            if self.server.entries.get((queue, job_id)) == token:
                del self.server.entries[queue, job_id]

    def run(self, ms: int) -> None:
        """Let the loop run for so long."""
        self.manager._state().loop.run(_Task(self.clock, ms))  # type: ignore[arg-type]

    @property
    def lost(self) -> list[tuple[int, str, LostLock]]:
        """Every lost lock with the time of its report."""
        return [
            (at, report.queue, lock)
            for at, report in self.reports
            if isinstance(report, LocksLost)
            for lock in report.lost
        ]

    @property
    def failures(self) -> list[tuple[int, RenewalFailed]]:
        """Every report of a failed call with its time."""
        return [(at, report) for at, report in self.reports if isinstance(report, RenewalFailed)]

    @property
    def renewed(self) -> list[tuple[int, LocksRenewed]]:
        """Every report of a renewed batch with its time."""
        return [(at, report) for at, report in self.reports if isinstance(report, LocksRenewed)]
