"""LockedWorker: RQ's forking worker. The worker holds the lock, whatever its work-horse does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any, Final

from gevent import monkey
from rq.job import Job
from rq.queue import Queue
from rq.worker import Worker

from echomq_plugin.events import LostLock
from echomq_plugin.hosts.rq.locking import LockedJobs
from echomq_plugin.hosts.rq.runs import Run, RunLostError

_PR_SET_PDEATHSIG: Final = 1


class ForkingLocks(LockedJobs):
    """
    For workers that run each job in a process of its own, the work-horse.

    The lock is taken, renewed and given back by the worker. A work-horse whose lock is lost is killed; one whose worker
    dies is killed by the kernel where that can be asked for (Linux), else it notices before it writes.
    """

    horse_pid: int

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Say so in a monkey-patched process: RQ waits there in a call that gevent does not patch."""
        super().bootstrap(*args, **kwargs)
        if monkey.is_module_patched("socket"):
            self.log.warning(
                "Worker %s: this process is monkey-patched, and a forking worker gains nothing by it: use GeventWorker",
                self.name,
            )

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Start the work-horse; kill it at once where its lock was lost meanwhile."""
        super().fork_work_horse(job, queue)  # type: ignore[misc]
        run = self.run_of(job)
        if run is not None and run.cancelled:
            self.kill_horse()

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Run one job, in the work-horse."""
        run = self.run_of(job)
        if run is not None:
            die_with(run.parent_pid)
        super().main_work_horse(job, queue)  # type: ignore[misc]

    def perform_job(self, *args: Any, **kwargs: Any) -> bool:
        """Run one job, in the work-horse. One that finds its lock lost ends as if all were well: see below."""
        try:
            return bool(super().perform_job(*args, **kwargs))  # type: ignore[misc]
        except RunLostError:
            return False

    def wait_for_horse(self) -> tuple[Any, Any, Any]:
        """
        Wait for the work-horse's end, in the worker.

        Where the lock is lost RQ is told that it ended well: it would log that the job failed, because its work-horse
        was terminated unexpectedly. Nobody's result is written in either case.
        """
        pid, status, usage = super().wait_for_horse()  # type: ignore[misc]
        lost = any(run.lost for run in self.runs.values())  # there is one
        return pid, os.EX_OK if lost else status, usage

    def cancel_run(self, run: Run, lost: LostLock) -> None:
        """Kill the work-horse."""
        super().cancel_run(run, lost)
        # Told late, it would hit the work-horse of the next job.
        if self.runs.get(run.job_id) is run:
            self.log.warning("Worker %s: killing the work-horse of job %s: lock %s", self.name, run.job_id, lost.reason)
            self.kill_horse()

    def kill_horse(self, *args: Any, **kwargs: Any) -> None:
        """Kill the work-horse if there is one: pid 0 would be this worker and everything started with it."""
        if self.horse_pid:
            super().kill_horse(*args, **kwargs)  # type: ignore[misc]


class LockedWorker(ForkingLocks, Worker):
    """``rq worker -w echomq_plugin.hosts.rq.LockedWorker``."""


def die_with(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies; without effect where the kernel is not Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        # It died before that was asked for.
        os._exit(1)
