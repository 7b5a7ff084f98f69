"""LockedSimpleWorker: RQ's worker without work-horses. A job whose lock is lost is interrupted in its thread."""

from __future__ import annotations

import ctypes
from typing import Any

from rq.job import Job
from rq.queue import Queue
from rq.worker import SimpleWorker

from echomq_plugin.events import LostLock
from echomq_plugin.hosts.rq.locking import LockedJobs
from echomq_plugin.hosts.rq.runs import Run
from echomq_plugin.interrupts import GreenletInterrupt, LockLostInterrupt
from echomq_plugin.native import allocate_lock, thread_id, uses_gevent


class ThreadInterrupt:
    """
    Raises ``LockLostInterrupt`` in the native thread that made it, until it is closed.

    Best effort: it is raised between two bytecodes, so a call into C ends first.
    """

    def __init__(self) -> None:
        self._thread = ctypes.c_ulong(thread_id())
        self._lock = allocate_lock()
        self._open = True

    def send(self, lost: LostLock) -> None:
        """Interrupt the job. Callable from any native thread."""

        def __init__(interrupt: LockLostInterrupt) -> None:  # noqa: N807  # CPython makes the instance, without arguments
            LockLostInterrupt.__init__(interrupt, lost)

        with self._lock:
            if self._open:
                self._open = False
                kind = type("LockLostInterrupt", (LockLostInterrupt,), {"__init__": __init__})
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(kind))

    def close(self) -> None:
        """The job has ended: what is still on its way must not hit what this thread does next."""
        try:
            self._close()
        except LockLostInterrupt:
            # It came at the last moment, and there is only one.
            self._close()

    def _close(self) -> None:
        with self._lock:
            self._open = False
            ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, None)


class SimpleLocks(LockedJobs):
    """For workers that run jobs in their own thread."""

    _interrupt: Any = None

    @property
    def lock_side(self) -> Any:  # type: ignore[override]
        """Where hooks run: on the worker's hub under gevent, else in a native thread."""
        return "auto"

    def run_locked(self, run: Run, job: Job, queue: Queue) -> None:
        """Run the job, ready to be interrupted."""
        interrupt: Any = GreenletInterrupt() if uses_gevent() else ThreadInterrupt()
        self._interrupt = interrupt
        try:
            if not run.cancelled:
                super().run_locked(run, job, queue)
        finally:
            interrupt.close()
            self._interrupt = None

    def cancel_run(self, run: Run, lost: LostLock) -> None:
        """Interrupt the job."""
        super().cancel_run(run, lost)
        # Told late, it would hit the next job.
        interrupt = self._interrupt if self.runs.get(run.job_id) is run else None
        if interrupt is not None:
            interrupt.send(lost)

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no work-horse, and the oldest RQ would kill this worker's whole process group."""


class LockedSimpleWorker(SimpleLocks, SimpleWorker):
    """``rq worker -w echomq_plugin.hosts.rq.LockedSimpleWorker``."""
