"""
StalledChecker: finds the jobs of dead workers. An entry that has had no lock in two passes in a row is a dead run's.

It only finds. Putting back needs host code, which runs elsewhere (``recovery.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import gevent

from echomq_plugin.errors import EchoMQError
from echomq_plugin.events import CheckFailed, JobsFoundDead, Report
from echomq_plugin.hubs import Task
from echomq_plugin.keys import QueueKeys
from echomq_plugin.sweep_scripts import SweepScripts

RETRY_MS: Final = 1_000
"""A pass that failed is repeated after this, in ms, or at the next pass where that is sooner."""


class StalledChecker:
    """
    Sweeps every queue under a prefix, also those whose workers are all dead.

    Workers share the passes: for each queue whoever wins ``held-check`` makes the pass, the others wait for the next.
    Those that serve the queue come first: where apps share a prefix, most workers cannot put its jobs back.

    Args:
        scripts: the wire.
        prefix: the first part of every key.
        worker: gives this worker's name, for people who look.
        stalled_interval: passes come at half of it, in ms (DESIGN §7).
        now_ms: the clock.
        outbox: takes reports; must neither block nor raise.
        serves: tells whether this worker runs jobs of a queue.
        own_queues: the queues this worker serves: made known again where the server has forgotten them, or nobody
            would ever sweep them.

    """

    def __init__(
        self,
        scripts: SweepScripts,
        *,
        prefix: str,
        worker: Callable[[], str],
        stalled_interval: int,
        now_ms: Callable[[], int],
        outbox: Callable[[Report], None],
        serves: Callable[[str], bool] = lambda _: True,
        own_queues: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._scripts = scripts
        self._prefix = prefix
        self._worker = worker
        self._serves = serves
        self._own_queues = own_queues
        self._pause_ms = stalled_interval // 2
        self._now_ms = now_ms
        self._outbox = outbox
        self._left_to_others: dict[str, int] = {}
        self._count_cursors: dict[str, int] = {}

    def run(self, task: Task) -> None:
        """Check at start and for ever after. Runs in a greenlet of its own; no error ends it."""
        next_check = self._now_ms()
        while not task.stopping:
            left = next_check - self._now_ms()
            if left > 0:
                task.wait(left)  # switches greenlets
                continue
            try:
                wait_ms = self.check()
            except (Exception, gevent.Timeout) as error:  # nobody above has a Timeout that could be meant
                wait_ms = self._failed(None, error)
            next_check = self._now_ms() + wait_ms

    def check(self) -> int:
        """
        Make the passes that this worker wins; return the ms until the next may be won. Switches greenlets.

        Raises:
            RedisCallError: the queues could not be listed.

        """
        next_in_ms = self._pause_ms
        for queue in self._known_queues():
            if self._now_ms() < self._left_to_others.get(queue, 0):
                continue
            try:
                keys = QueueKeys(self._prefix, queue)
                left = self._scripts.win_check(keys, self._worker(), self._pause_ms, serves=self._serves(queue))
                if left == 0:
                    self._sweep(keys)
                else:
                    next_in_ms = min(next_in_ms, left + 1)
            except EchoMQError as error:
                next_in_ms = min(next_in_ms, self._failed(queue, error))
        return next_in_ms

    def leave_to_others(self, queue: str) -> None:
        """Do not try for this queue's next passes: nobody here can put its jobs back, another worker may."""
        self._left_to_others[queue] = self._now_ms() + 3 * self._pause_ms

    def _known_queues(self) -> list[str]:
        queues = self._scripts.queues(self._prefix)
        for queue in self._own_queues():
            if queue not in queues:
                self._scripts.add_queue(self._prefix, queue)
                queues.append(queue)
        return queues

    def _sweep(self, keys: QueueKeys) -> None:
        seen: set[str] = set()
        cursor, more = 0, True
        while more:
            cursor, ids = self._scripts.held_ids(keys, cursor)
            more = cursor != 0
            # A scan may return an id twice, and twice in one pass is not two passes.
            new = [job_id for job_id in ids if job_id not in seen]
            seen.update(new)
            dead = self._scripts.mark_lockless(keys, new) if new else []
            if dead:
                self._outbox(JobsFoundDead(keys.queue, tuple(dead)))
        # A few counts each pass are enough: they are kept for days.
        cursor, ids = self._scripts.counted_ids(keys, self._count_cursors.get(keys.queue, 0))
        self._count_cursors[keys.queue] = cursor
        if ids:
            self._scripts.prune_counts(keys, ids)

    def _failed(self, queue: str | None, error: BaseException) -> int:
        retry_in_ms = min(RETRY_MS, self._pause_ms)
        self._outbox(CheckFailed(queue, error, retry_in_ms))
        return retry_in_ms
