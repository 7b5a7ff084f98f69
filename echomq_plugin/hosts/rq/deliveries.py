"""Deliveries: what names one in RQ, and what becomes of one that may not run now."""

from __future__ import annotations

from typing import Any

from rq.exceptions import InvalidJobOperation
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.utils import utcformat


def delivery_of(job: Job) -> str:
    """
    Name the delivery that a job was just popped by.

    RQ writes ``enqueued_at`` anew, in the same transaction, whenever it pushes a job by itself: at enqueueing, at each
    retry, and when the scheduler or the sweep puts it back. An id that is pushed without that is the same delivery once
    more.
    """
    return str(utcformat(job.enqueued_at)) if job.enqueued_at else ""


def status_now(job: Job) -> Any:
    """Return the status in the job's hash, None where the hash is gone. Raises what redis-py raises."""
    try:
        return job.get_status()
    except InvalidJobOperation:
        return None


def may_be_dropped(job: Job) -> bool:
    """
    Tell whether a denied delivery, already known to be the running run's own, may be dropped.

    Only once the run has written that it is under way: until then the lock may be one that is being given up because
    Redis gave no answer to who took it, and this delivery the only one there is.
    """
    return bool(status_now(job) == JobStatus.STARTED)


def came_again(job: Job, delivery: str | None) -> bool:
    """Tell whether RQ has pushed the job again since this delivery. Raises what redis-py raises."""
    enqueued_at = job.connection.hget(job.key, "enqueued_at")
    return (enqueued_at or b"").decode() != (delivery or "")


def drop(job: Job, queue: Queue) -> None:
    """Forget a second delivery of a running run. The job's hash is the running run's: it is not touched."""
    # With one queue RQ moves what it pops there, and fails what stays there for a minute.
    queue.connection.lrem(queue.intermediate_queue_key, 1, job.id)


def put_back(job: Job, queue: Queue, *, at_front: bool, again: bool = False) -> None:
    """
    Put a delivery back into its queue, unchanged, in one transaction.

    ``enqueue_job`` would write the job's hash, which may be another run's.

    Args:
        job: the job.
        queue: the queue it was popped from.
        at_front: put it where it came from, else behind what waits.
        again: an earlier call got no answer, and may have done it.

    """
    if again and queue.connection.lpos(queue.key, job.id) is not None:
        return
    put_back_id(job.id, queue, at_front=at_front)


def put_back_id(job_id: str, queue: Queue, *, at_front: bool) -> None:
    """As ``put_back``, for a job that was not read."""
    with queue.connection.pipeline() as pipeline:
        pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
        queue.push_job_id(job_id, pipeline=pipeline, at_front=at_front)
        pipeline.execute()
