"""LockedSimpleWorker: RQ's worker without work-horses. A job whose lock is lost is interrupted in its thread."""

from __future__ import annotations

from typing import Any

from rq.job import Job
from rq.queue import Queue
from rq.worker import SimpleWorker

from echomq_plugin.events import LostLock
from echomq_plugin.hosts.rq.locking import LockedJobs
from echomq_plugin.hosts.rq.runs import Run
from echomq_plugin.interrupts import interrupt_for_this_run


class SimpleLocks(LockedJobs):
    """For workers that run jobs in their own thread."""

    _interrupt: Any = None

    @property
    def lock_side(self) -> Any:  # type: ignore[override]
        """Where hooks run: on the worker's hub under gevent, else in a native thread."""
        return "auto"

    def run_locked(self, run: Run, job: Job, queue: Queue) -> None:
        """Run the job, ready to be interrupted."""
        interrupt = interrupt_for_this_run()
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
