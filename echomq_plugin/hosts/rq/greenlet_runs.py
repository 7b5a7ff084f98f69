"""What belongs to one greenlet of GeventWorker: its run, its time limit, and the way to stop it."""

from __future__ import annotations

from typing import Any

import gevent
import gevent.local
from rq.timeouts import BaseDeathPenalty

from echomq_plugin.hosts.rq.runs import Run


class StopJob(BaseException):
    """Raised in a job that is stopped by ``send_stop_job_command``. No ``Exception``: the job must not catch it."""


class Here(gevent.local.local):
    """
    The run of the current greenlet.

    Attributes:
        run: the run, or None.
        slot: its slot, or None.
        beats: the greenlet sends heartbeats for running jobs.

    """

    run: Run | None = None
    slot: Slot | None = None
    beats: bool = False


HERE = Here()


class Slot:
    """
    One job of many in a worker.

    Whatever is to stop it is thrown into its greenlet only while that runs the user's code: RQ's own calls to Redis,
    and ours, are never cut off.

    Args:
        permit: held by the greenlet but while it runs the user's code. There are few, so that hundreds of jobs that
            start or end at once need few connections, and no call waits long for its turn.

    """

    def __init__(self, permit: Any) -> None:
        self.permit = permit
        self.greenlet: Any = gevent.getcurrent()
        self.hub: Any = gevent.get_hub()
        self.stopped = False
        self.reason: BaseException | None = None
        self._open = False

    def interrupt(self, error: BaseException) -> None:
        """Throw an error into the user's code, now or as soon as it begins. Callable from any native thread."""
        if self.reason is None:
            self.reason = error
            self.hub.loop.run_callback_threadsafe(self._throw)

    def _throw(self) -> None:
        error = self.reason
        if error is not None and self._open and not self.greenlet.dead:
            self._open = False
            self.greenlet.throw(error)

    def open(self) -> None:
        """From here on the user's code runs."""
        if self.reason is not None:
            raise self.reason
        self._open = True
        self.permit.release()

    def close(self) -> None:
        """The user's code has ended. Switches greenlets."""
        self._open = False
        self.permit.acquire()


class GreenletDeathPenalty(BaseDeathPenalty):
    """
    RQ's limit for a job or a callback, for one greenlet of many: SIGALRM is one for the whole process.

    A job that never waits is not stopped; no greenlet can be.
    """

    def setup_death_penalty(self) -> None:
        """Begin: from here to the end the user's code runs."""
        slot = HERE.slot
        if slot is not None:
            slot.open()
        error = self._exception(f"Task exceeded maximum timeout value ({self._timeout} seconds)")
        seconds = self._timeout if self._timeout and self._timeout > 0 else None
        self._timer = gevent.Timeout(seconds, error)
        self._timer.start()

    def cancel_death_penalty(self) -> None:
        """End."""
        self._timer.close()
        slot = HERE.slot
        if slot is not None:
            slot.close()
