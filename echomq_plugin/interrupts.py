"""Stopping the greenlet or thread that runs a job, from any native thread, and only while it runs that job."""

from __future__ import annotations

import ctypes
from typing import Any

import gevent

from echomq_plugin.errors import rebuilt
from echomq_plugin.events import LostLock
from echomq_plugin.native import allocate_lock, hub_of_this_thread, thread_id, uses_gevent


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

    def __reduce__(self) -> tuple[Any, ...]:
        """As errors of this package: a queue may store it."""
        return rebuilt, (type(self), self.args, self.__dict__)


class GreenletInterrupt:
    """
    Throws ``LockLostInterrupt`` into the greenlet that made it, until it is closed.

    Best effort: a greenlet that keeps its hub busy is reached when it next waits. In a native thread without a hub
    nothing can be thrown; there the job has to look at ``lock.believed``.

    Args:
        kind: what is thrown.

    """

    def __init__(self, kind: type[LockLostInterrupt] = LockLostInterrupt) -> None:
        self._kind = kind
        self._greenlet: Any = gevent.getcurrent()
        self._hub = hub_of_this_thread()
        self._open = True

    def send(self, lost: LostLock) -> None:
        """Interrupt the job. Callable from any native thread; the last word has the greenlet's own hub."""
        if self._hub is not None and self._open:
            self._hub.loop.run_callback_threadsafe(self._throw, self._kind(lost))

    def close(self) -> None:
        """The job has ended: whatever is still on its way must not hit what this greenlet does next."""
        self._open = False

    def _throw(self, interrupt: LockLostInterrupt) -> None:
        # On the greenlet's own hub, so it is not running now, and nothing runs between this test and the throw.
        if self._open and not self._greenlet.dead:
            self._open = False
            self._greenlet.throw(interrupt)


class ThreadInterrupt:
    """
    Raises ``LockLostInterrupt`` in the native thread that made it, until it is closed.

    Best effort: it is raised between two bytecodes, so a call into C ends first.

    Args:
        kind: what is raised.

    """

    def __init__(self, kind: type[LockLostInterrupt] = LockLostInterrupt) -> None:
        self._kind = kind
        self._thread = ctypes.c_ulong(thread_id())
        self._lock = allocate_lock()
        self._open = True
        self._sent = False

    def send(self, lost: LostLock) -> None:
        """Interrupt the job. Callable from any native thread."""
        kind = self._kind

        def __init__(interrupt: LockLostInterrupt) -> None:  # noqa: N807  # CPython makes the instance by itself
            kind.__init__(interrupt, lost)

        with self._lock:
            if self._open and not self._sent:
                self._sent = True
                raised = type(kind.__name__, (kind,), {"__init__": __init__})
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(raised))

    def close(self) -> None:
        """The job has ended: what is still on its way must not hit what this thread does next."""
        try:
            self._close()
        except LockLostInterrupt:
            # It came at the last moment, and only one is ever sent.
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._open = False
            if self._sent:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


def interrupt_for_this_run(kind: type[LockLostInterrupt] = LockLostInterrupt) -> GreenletInterrupt | ThreadInterrupt:
    """Return what stops the run that the caller is about to begin: in its greenlet, or in its native thread."""
    return GreenletInterrupt(kind) if uses_gevent() else ThreadInterrupt(kind)
