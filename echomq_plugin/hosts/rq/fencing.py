"""FencedWrites: a run that has lost its lock writes nothing, in the worker as in its work-horse."""

from __future__ import annotations

import sys
from typing import Any

from rq.job import Job

from echomq_plugin.hosts.rq.runs import Run, RunLostError


class FencedWrites:
    """
    Asks, before RQ writes a job's end, whether the run still has its lock.

    Attributes:
        runs: the runs of this process, by job id. A work-horse has its one run there.

    """

    connection: Any
    _forced_stop = False
    _stopped_job_id: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.runs: dict[str, Run] = {}

    def still_ours(self, job: Job) -> bool:
        """Tell whether this worker may write a job's result: its lock is still ours, or it never had one."""
        run = self.run_of(job)
        return run is None or run.still_ours(self.connection)

    def run_of(self, job: Job) -> Run | None:
        """Return the run of a job in this process."""
        return self.runs.get(job.id)

    def handle_execution_ended(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """Leave RQ's code, before it calls anybody's callbacks, where a run's end does not count."""
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and self._forced_stop and self.run_of(job) is not None:
            raise error
        run = self.run_of(job)
        if run is not None and (run.lost or (has_callbacks(job) and not run.still_ours(self.connection))):
            raise RunLostError(job.id)
        super().handle_execution_ended(job, *args, **kwargs)  # type: ignore[misc]

    def handle_job_success(self, job: Job, *args: Any, **kwargs: Any) -> Any:
        """Write a result, if the run still has its lock."""
        if not self.still_ours(job):
            raise RunLostError(job.id)
        result = super().handle_job_success(job, *args, **kwargs)  # type: ignore[misc]
        run = self.run_of(job)
        if run is not None:
            run.completed = True
        return result

    def handle_job_retry(self, job: Job, *args: Any, **kwargs: Any) -> Any:
        """Put a job that returned a ``Retry`` back, if the run still has its lock."""
        if not self.still_ours(job):
            raise RunLostError(job.id)
        return super().handle_job_retry(job, *args, **kwargs)  # type: ignore[misc]

    def handle_job_failure(self, job: Job, *args: Any, **kwargs: Any) -> Any:
        """Write a failure, or push the job's retry, if the run still has its lock."""
        if not self.still_ours(job):
            if self._stopped_job_id == job.id:
                self._stopped_job_id = None
            return None
        return super().handle_job_failure(job, *args, **kwargs)  # type: ignore[misc]

    def handle_work_horse_killed(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """Tell of a work-horse that died by itself; one that lost its lock was killed on purpose."""
        run = self.run_of(job)
        if run is None or not run.lost:
            super().handle_work_horse_killed(job, *args, **kwargs)  # type: ignore[misc]


def has_callbacks(job: Job) -> bool:
    """Tell whether the user's code runs between a job's end and RQ's write."""
    # Their names alone: looking at a callback itself would import it.
    return bool(job._success_callback_name or job._failure_callback_name)
