"""Stopping the greenlet that runs a job, from any native thread, and only while it runs that job."""

from __future__ import annotations

from typing import Any

import gevent

from echomq_plugin.events import LostLock
from echomq_plugin.native import hub_of_this_thread


class LockLostInterrupt(BaseException):
    """
    Raised inside a job whose lock was lost.

    Not an ``Exception``, and outside this package's error tree: a job's own ``except Exception`` must not catch it.

    Attributes:
        lost: the report of the loss.

    """

    def __init__(self, lost: LostLock) -> None:
        self.lost = lost
        super().__init__(f"the lock of job {lost.job_id!r} is lost ({lost.reason})")


class GreenletInterrupt:
    """
    Throws ``LockLostInterrupt`` into the greenlet that made it, until it is closed.

    Best effort: a greenlet that keeps its hub busy is reached when it next waits. In a native thread without a hub
    nothing can be thrown; there the job has to look at ``lock.believed``.
    """

    def __init__(self) -> None:
        self._greenlet: Any = gevent.getcurrent()
        self._hub = hub_of_this_thread()
        self._open = True

    def send(self, lost: LostLock) -> None:
        """Interrupt the job. Callable from any native thread; the last word has the greenlet's own hub."""
        if self._hub is not None and self._open:
            self._hub.loop.run_callback_threadsafe(self._throw, LockLostInterrupt(lost))

    def close(self) -> None:
        """The job has ended: whatever is still on its way must not hit what this greenlet does next."""
        self._open = False

    def _throw(self, interrupt: LockLostInterrupt) -> None:
        # On the greenlet's own hub, so it is not running now, and nothing runs between this test and the throw.
        if self._open and not self._greenlet.dead:
            self._open = False
            self._greenlet.throw(interrupt)
