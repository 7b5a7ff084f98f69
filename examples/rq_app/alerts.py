"""Hooks: who is told when a lock is lost, and when the job of a lost lock or a killed worker comes back."""

from __future__ import annotations

from echomq_plugin import LostLock, StalledJob, hookimpl


@hookimpl
def echomq_lock_lost(queue: str, lost: tuple[LostLock, ...]) -> None:
    for lock in lost:
        print(
            f"ALERT: job {lock.job_id} of {queue} lost its lock ({lock.reason}) after {lock.held_for_ms} ms", flush=True
        )


@hookimpl
def echomq_job_recovered(job: StalledJob) -> None:
    print(f"job {job.job_id} of {job.queue} is back: its run on {job.worker} left no result", flush=True)
