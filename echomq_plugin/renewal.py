"""
Renewal: one pass over the tracked locks. What is due goes out, and each reply is settled as it comes in.

No greenlet, thread or timer of its own: whoever calls ``run`` decides when. A failed call moves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from echomq_plugin.errors import RedisCallError
from echomq_plugin.events import LocksLost, LocksRenewed, LostLock, LostReason, Report
from echomq_plugin.failures import Failure, failure_of
from echomq_plugin.keys import QueueKeys
from echomq_plugin.releases import Releases
from echomq_plugin.scripts import Batch, Ownership, Scripts
from echomq_plugin.table import LockTable, PendingRelease
from echomq_plugin.tracking import TrackedLock

Losses = list[tuple[TrackedLock, LostReason]]


def plan_rounds(due: Iterable[TrackedLock], batch_size: int) -> list[dict[str, list[TrackedLock]]]:
    """
    Share due locks out over round trips: grouped by queue, at most ``batch_size`` locks in each.

    Queues keep the order of their first lock, so that what is most at risk goes first.
    """
    by_queue: defaultdict[str, list[TrackedLock]] = defaultdict(list)
    for lock in due:
        by_queue[lock.queue].append(lock)
    rounds: list[dict[str, list[TrackedLock]]] = []
    room = 0
    for queue, locks in by_queue.items():
        at = 0
        while at < len(locks):
            if room == 0:
                rounds.append({})
                room = batch_size
            taken = locks[at : at + room]
            rounds[-1][queue] = taken
            at += len(taken)
            room -= len(taken)
    return rounds


class Renewal:
    """
    Renews what is due.

    Args:
        table: the tracked locks.
        scripts: the wire.
        prefix: the first part of every key.
        batch_size: the most locks in one round trip.
        now_ms: the clock.
        outbox: takes reports; must neither block nor raise.

    """

    def __init__(
        self,
        table: LockTable,
        scripts: Scripts,
        *,
        prefix: str,
        batch_size: int,
        now_ms: Callable[[], int],
        outbox: Callable[[Report], None],
    ) -> None:
        self._table = table
        self._scripts = scripts
        self._prefix = prefix
        self._batch_size = batch_size
        self._now_ms = now_ms
        self._outbox = outbox
        self._releases = Releases(table, scripts, prefix=prefix)

    def run(self, hub_blocked_ms: int = 0) -> list[Failure]:
        """
        Make one pass. Called by the renewal greenlet; switches greenlets at every call to Redis.

        Args:
            hub_blocked_ms: how late this pass is, in ms, for the reports.

        Returns:
            the calls that gave no answer; the pass is worth repeating soon when there are any.

        """
        now = self._now_ms()
        with self._table.lock:
            gone = self._table.tracked.expired(now, hub_blocked_ms)
            gone += self._table.tracked.held_too_long(now, hub_blocked_ms)
            due = self._table.tracked.due(now)
        # At once: where Redis hangs the calls take a while, and a run past its deadline is to be stopped now.
        self._report_lost(gone)
        losses: defaultdict[str, Losses] = defaultdict(list)
        try:
            failures = self._renew(due, hub_blocked_ms, losses)
        finally:
            # None is kept back by what ends the pass.
            for queue in list(losses):
                self._lose(losses.pop(queue), hub_blocked_ms)
        return failures + self._releases.run()

    def _keys(self, queue: str) -> QueueKeys:
        return QueueKeys(self._prefix, queue)

    def _renew(self, due: list[TrackedLock], hub_blocked_ms: int, losses: defaultdict[str, Losses]) -> list[Failure]:
        failures: list[Failure] = []
        rounds = plan_rounds(due, self._batch_size)
        unanswered: dict[str, RedisCallError] = {}
        for number, batches in enumerate(rounds):
            # Round after round these would take their whole limit, and hold up the other nodes of a cluster.
            again = [queue for queue in batches if queue in unanswered]
            failures += [failure_of(queue, batches.pop(queue), unanswered[queue]) for queue in again]
            if not batches:
                continue
            sent_at = self._now_ms()
            try:
                replies = self._send(batches)  # switches greenlets
            except Exception as error:
                if len(batches) == 1 and _is_wrong_type(error):
                    [(queue, locks)] = batches.items()
                    failures += self._renew_each(queue, locks)
                    continue
                # The rest would wait for its limit too, round after round: leave it for the retry.
                for rest in rounds[number:]:
                    failures += [failure_of(queue, locks, error) for queue, locks in rest.items()]
                break
            for (queue, locks), reply in zip(batches.items(), replies, strict=True):
                if isinstance(reply, RedisCallError):
                    if _is_wrong_type(reply):
                        failures += self._renew_each(queue, locks)
                    else:
                        unanswered[queue] = reply
                        failures.append(failure_of(queue, locks, reply))
                    continue
                with self._table.lock:
                    settled = self._table.tracked.settle(locks, reply, sent_at)
                if settled.renewed:
                    self._outbox(LocksRenewed(queue, tuple(settled.renewed)))
                if settled.suspects:
                    failures += self._examine(queue, settled.suspects, losses[queue])
                if queue in losses and not any(queue in later for later in rounds[number + 1 : number + 2]):
                    # One report for each queue, and no other queue's calls delay it: its runs go on meanwhile.
                    self._lose(losses.pop(queue), hub_blocked_ms)
        return failures

    def _send(self, batches: dict[str, list[TrackedLock]]) -> list[list[str] | RedisCallError]:
        wire = [
            Batch(self._keys(queue), [lock.job_id for lock in locks], [lock.token for lock in locks])
            for queue, locks in batches.items()
        ]
        return self._scripts.extend_locks(wire, self._table.tracked.lock_duration)

    def _examine(self, queue: str, suspects: list[TrackedLock], losses: Losses) -> list[Failure]:
        """Find out what became of locks that the frozen script did not renew: adds the lost. Switches greenlets."""
        try:
            found = self._scripts.look_up(self._keys(queue), [lock.job_id for lock in suspects])
        except Exception as error:
            return [failure_of(queue, suspects, error)]
        ours: list[TrackedLock] = []
        forgotten: list[TrackedLock] = []
        for lock, ownership in zip(suspects, found, strict=True):
            if ownership.lock_token == lock.token:
                # Not lost: while a cluster moves a slot, the frozen script looks for some locks on the wrong node.
                ours.append(lock)
            elif self._server_forgot(lock, ownership):
                forgotten.append(lock)
            else:
                losses.append((lock, "missing" if ownership.lock_token is None else "taken"))
        not_restored = self._restore(queue, forgotten) if forgotten else []
        if not not_restored:
            losses += [(lock, "missing") for lock in forgotten]
        return not_restored + self._renew_each(queue, ours)

    def _lose(self, losses: Losses, hub_blocked_ms: int) -> None:
        """Untrack locks that are lost and report them, in one step: none is dropped without a word."""
        with self._table.lock:
            reports = self._table.tracked.lose(losses, self._now_ms(), hub_blocked_ms)
        self._report_lost(reports)

    def _server_forgot(self, lock: TrackedLock, ownership: Ownership) -> bool:
        """Tell whether a lock and its entry went before their time: then only we still know of the job."""
        with self._table.lock:
            ours = self._table.tracked.believes(lock.queue, lock.job_id, lock.token, self._now_ms())
        return (
            ours
            and lock.entry is not None
            and not lock.ended
            and ownership.lock_token is None
            and ownership.entry_token is None
        )

    def _restore(self, queue: str, forgotten: list[TrackedLock]) -> list[Failure]:
        """Write entries again, so that the sweep brings the jobs back. Switches greenlets."""
        jobs = [(lock.job_id, lock.token, lock.entry or b"", 0) for lock in forgotten]
        try:
            self._scripts.restore_entries(self._keys(queue), jobs)
        except Exception as error:
            # Still tracked, so the next pass tries again.
            return [failure_of(queue, forgotten, error)]
        with self._table.lock:
            tracked = self._table.tracked
            ended = [lock for lock in forgotten if lock.ended or not tracked.holds(queue, lock.job_id, lock.token)]
            ended = [lock for lock in ended if not lock.entry_stays]
        for lock in ended:
            # Its job ended while its entry was being written: nothing is to be brought back.
            self._table.add_release(PendingRelease(queue, lock.job_id, lock.token))
        return []

    def _renew_by_key(self, lock: TrackedLock) -> list[Failure]:
        sent_at = self._now_ms()
        duration = self._table.tracked.lock_duration
        try:
            renewed = self._scripts.renew_one(self._keys(lock.queue), lock.job_id, lock.token, duration)
        except Exception as error:
            return [failure_of(lock.queue, [lock], error)]
        if renewed:
            with self._table.lock:
                settled = self._table.tracked.settle([lock], (), sent_at)
            if settled.renewed:
                self._outbox(LocksRenewed(lock.queue, tuple(settled.renewed)))
        # Else it changed hands in this moment: it stays due, and the next pass sees what it is.
        return []

    def _renew_each(self, queue: str, locks: list[TrackedLock]) -> list[Failure]:
        """
        Renew one by one what a batch could not; where there is no answer the rest is left for the retry.

        The frozen script ends at a key that is not text: no error of another kind is a single lock's. Switches
        greenlets.
        """
        failures: list[Failure] = []
        for number, lock in enumerate(locks):
            failed = self._renew_by_key(lock)
            if failed and not _is_wrong_type(failed[0].error):
                return [*failures, failure_of(queue, locks[number:], failed[0].error)]
            failures += failed
        return failures

    def _report_lost(self, reports: Iterable[tuple[str, LostLock]]) -> None:
        by_queue: dict[str, list[LostLock]] = {}
        for queue, lost in reports:
            by_queue.setdefault(queue, []).append(lost)
        for queue, group in by_queue.items():
            self._outbox(LocksLost(queue, tuple(group)))


def _is_wrong_type(error: BaseException) -> bool:
    return isinstance(error, RedisCallError) and "WRONGTYPE" in str(error)
