"""ListJob: one run of one item, from its lock to its end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import gevent
from gevent.event import Event

from echomq_plugin.errors import OwnershipUnknownError, RedisCallError
from echomq_plugin.events import Outcome
from echomq_plugin.hosts.outage import Outage
from echomq_plugin.hosts.reliable_list import ReliableList
from echomq_plugin.interrupts import GreenletInterrupt, LockLostInterrupt
from echomq_plugin.locks import Lock
from echomq_plugin.log import log_event
from echomq_plugin.plugin import LockPlugin

Handler = Callable[[bytes], object]

_current: Final[ContextVar[Lock]] = ContextVar("echomq_current_lock")


def current_lock() -> Lock:
    """
    Return the lock of the job whose handler calls this, in the handler's own greenlet.

    Raises:
        LookupError: no handler runs in this greenlet.

    """
    return _current.get()


class ListJob:
    """
    Runs an item whose lock was taken, writes what became of it, and gives the lock back.

    Args:
        item: the item.
        lock: its lock.
        handler: the user's function.
        plugin: gives the lock back.
        items: the list.
        outage: says so when Redis does not answer.
        forced: set once the consumer must end now: then nothing is tried a second time.

    """

    def __init__(
        self,
        item: bytes,
        lock: Lock,
        handler: Handler,
        *,
        plugin: LockPlugin,
        items: ReliableList,
        outage: Outage,
        forced: Event,
    ) -> None:
        self.item = item
        self.lock = lock
        self._plugin = plugin
        self._items = items
        self._outage = outage
        self._forced = forced
        self._handler = handler
        self._greenlet: Any = None

    def run(self) -> None:
        """
        Run the item: the body of its greenlet.

        Raises:
            BaseException: what the handler raised to end the process (SystemExit, KeyboardInterrupt).

        """
        outcome: Outcome = "interrupted"
        try:
            outcome = self._handled()
            if outcome != "interrupted" and not self._written(outcome):
                outcome = "interrupted"
        finally:
            # `interrupted` leaves the entry, so that the sweep brings back what was neither written nor put back.
            self._finish(outcome)

    def kill(self) -> None:
        """End the handler by GreenletExit, soon; a job whose handler has ended goes on writing its result."""
        gevent.get_hub().loop.run_callback(self._throw)

    def _throw(self) -> None:
        # On the greenlet's own hub: nothing runs between this test and the throw.
        if self._greenlet is not None:
            self._greenlet.throw(gevent.GreenletExit)

    def _handled(self) -> Outcome:
        if self._forced.is_set():
            return "requeued"
        _current.set(self.lock)
        interrupt = GreenletInterrupt()
        self._plugin.cancel_with(self.lock, lambda _, lost: interrupt.send(lost))
        self._greenlet = gevent.getcurrent()
        try:
            if self.lock.lost is not None:
                return "interrupted"
            self._handler(self.item)
        except LockLostInterrupt as stopped:
            if stopped.lost.reason != "held_too_long":
                return "interrupted"
            # The lock is still ours: a job that hung once would hang again, so it does not go back.
            self._log(logging.ERROR, "job held too long", held_for_ms=stopped.lost.held_for_ms)
            return "cancelled"
        except gevent.GreenletExit:
            return "requeued"
        except (Exception, gevent.Timeout) as error:
            self._log(logging.ERROR, "job failed", trace=error)
            return "failed"
        finally:
            self._greenlet = None
            interrupt.close()
        return "completed"

    def _written(self, outcome: Outcome) -> bool:
        """Write the result into the list, while the lock is ours; False: nothing was written. Switches greenlets."""
        for attempt in itertools.count():
            if self.lock.lost is not None:
                return False
            try:
                if not self.lock.confirm():
                    self._log(logging.WARNING, "result dropped", outcome=outcome)
                    return False
                self._write(outcome)
            except (OwnershipUnknownError, RedisCallError) as error:
                if not self._outage.pause(error, attempt, self._forced):
                    return False
            else:
                self._outage.over()
                break
        return True

    def _write(self, outcome: Outcome) -> None:
        if outcome == "completed":
            self._items.acknowledge(self.item)
        elif outcome == "requeued":
            self._items.put_back(self.item, run_next=True)
        else:
            self._items.fail(self.item)

    def _finish(self, outcome: Outcome) -> None:
        try:
            self._plugin.pm.hook.echomq_job_finish(lock=self.lock, outcome=outcome)
        except Exception as error:  # a plugin's wrapper may raise anything
            self._log(logging.ERROR, "finish failed", trace=error)

    def _log(self, level: int, event: str, *, trace: BaseException | None = None, **data: object) -> None:
        log_event(level, event, trace=trace, queue=self.lock.queue, job_id=self.lock.job_id, **data)
