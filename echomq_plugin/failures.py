"""Failure: a call about some jobs of one queue that gave no usable answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from echomq_plugin.table import PendingRelease
from echomq_plugin.tracking import TrackedLock


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that gave no usable answer: ``job_ids`` of ``queue`` are as they were, whatever the server did."""

    queue: str
    job_ids: tuple[str, ...]
    error: BaseException


def failure_of(queue: str, jobs: Iterable[TrackedLock | PendingRelease], error: BaseException) -> Failure:
    """Make the failure of a call that was about these jobs of one queue."""
    return Failure(queue, tuple(job.job_id for job in jobs), error)
