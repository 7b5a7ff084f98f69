"""LockedSpawnWorker: as LockedWorker, for RQ's SpawnWorker, whose work-horse is a new interpreter."""

from __future__ import annotations

import os

from rq.job import Job
from rq.queue import Queue

from echomq_plugin.hosts.rq.forking import ForkingLocks
from echomq_plugin.hosts.rq.runs import RUN_VARIABLE, Run

try:
    from rq.worker import SpawnWorker
except ImportError as error:
    raise ImportError("this version of RQ has no SpawnWorker: use LockedWorker, or a newer RQ") from error


class LockedSpawnWorker(ForkingLocks, SpawnWorker):
    """``rq worker -w echomq_plugin.hosts.rq.LockedSpawnWorker``."""

    def fork_work_horse(self, job: Job, queue: Queue) -> None:
        """Start the work-horse, and tell it which run it is."""
        run = self.run_of(job)
        if run is not None:
            os.environ[RUN_VARIABLE] = run.to_environment()
        try:
            super().fork_work_horse(job, queue)
        finally:
            os.environ.pop(RUN_VARIABLE, None)

    def main_work_horse(self, job: Job, queue: Queue) -> None:
        """Run one job, in the work-horse."""
        run = Run.from_environment(job.id)
        if run is not None:
            self.runs[job.id] = run
        super().main_work_horse(job, queue)
