"""RenewalLoop: the body of the one renewal greenlet. It waits for the next pass, makes it, and reports what failed."""

from __future__ import annotations

from collections.abc import Callable

import gevent

from echomq_plugin.clocks import Clock
from echomq_plugin.events import RenewalFailed, Report
from echomq_plugin.failures import Failure
from echomq_plugin.hubs import Task
from echomq_plugin.options import LockOptions
from echomq_plugin.renewal import Renewal
from echomq_plugin.schedule import Schedule, late_by
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable


class RenewalLoop:
    """
    Ticks until stopped. No error of Redis, and no other, ends it.

    Args:
        table: the tracked locks of this process.
        scripts: the wire.
        options: the durations.
        queue: whose name a failure of the whole pass bears.
        clock: ``now_ms()``.
        spare_ms: how much longer than the protocol's interval a tick is, in ms. On the exact ms a tick would find what
            the tick before renewed within its first ms not due yet (strictly more, says the protocol), and leave it
            for one more whole tick.
        outbox: takes reports; must neither block nor raise.

    """

    def __init__(
        self,
        table: LockTable,
        scripts: Scripts,
        options: LockOptions,
        *,
        queue: str,
        clock: Clock,
        spare_ms: int,
        outbox: Callable[[Report], None],
    ) -> None:
        self._table = table
        self._options = options
        self._queue = queue
        self._now_ms = clock.now_ms
        self._interval = options.interval + spare_ms
        self._outbox = outbox
        self._asked = False
        self._renewal = Renewal(
            table,
            scripts,
            prefix=options.prefix,
            batch_size=options.batch_size,
            now_ms=clock.now_ms,
            outbox=outbox,
        )

    def ask(self) -> None:
        """Have the next pass made at once; whoever asks wakes the task too. From any thread."""
        self._asked = True

    def run(self, task: Task) -> None:
        """Tick until the task is stopped."""
        schedule = Schedule(self._interval, self._now_ms())
        excused: int | None = None
        while not task.stopping:
            asked = self._asked
            if asked:
                self._asked = False  # never otherwise: an ask that comes between would be forgotten
            with self._table.lock:
                deadline = self._table.tracked.next_wakeup()
                waiting_releases = bool(self._table.releases)
            now = self._now_ms()
            if waiting_releases:
                schedule.retry_soon(now)
            wake_at = now if asked else schedule.next_pass(deadline)
            if wake_at > now:
                task.wait(wake_at - now)  # switches greenlets
                now = self._now_ms()
                if now < wake_at:
                    continue  # woken because something changed
            late = late_by(now, wake_at, self._options.call_limit)
            if deadline is not None and deadline <= now:
                # For one deadline the server is asked once: if it did not answer that pass, the clock judges.
                late, excused = (0 if deadline == excused else late), deadline
            try:
                failures = self._renewal.run(late)  # switches greenlets
            except (Exception, gevent.Timeout) as error:  # nobody above has a Timeout that could be meant
                failures = [Failure(self._queue, (), error)]
            now = self._now_ms()
            with self._table.lock:
                deadline = self._table.tracked.next_wakeup()
            self._report(failures, now, schedule.passed(now, failed=bool(failures), deadline=deadline))

    def _report(self, failures: list[Failure], now: int, retry_in_ms: int) -> None:
        for failure in failures:
            with self._table.lock:
                locks = [self._table.tracked.get(failure.queue, job_id) for job_id in failure.job_ids]
            deadlines = [lock.renewed_at + self._options.lock_duration - now for lock in locks if lock is not None]
            at_risk_in_ms = max(0, min(deadlines, default=self._options.lock_duration))
            self._outbox(RenewalFailed(failure.queue, failure.job_ids, failure.error, retry_in_ms, at_risk_in_ms))
