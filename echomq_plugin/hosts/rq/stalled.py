"""StalledJobs: brings the jobs of dead RQ workers back through RQ's own registries and queue, or fails them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pluggy
from redis import WatchError
from rq.exceptions import AbandonedJobError, NoSuchJobError
from rq.executions import Execution
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.timeouts import BaseDeathPenalty

try:
    from rq.rate_limit import release_slot
except ImportError:  # RQ before 3.0
    release_slot = None

from echomq_plugin.attach import hookimpl_for
from echomq_plugin.connections import Client
from echomq_plugin.events import StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.keys import QueueKeys
from echomq_plugin.log import logger

NAME: Final = "echomq-rq"

Work = Callable[[StalledJob, Job, Queue, str], None]


def payload_of(job: Job, queue: Queue) -> str:
    """Return what finds the job again: other hosts may share the prefix, and other apps the server."""
    return json.dumps({"host": "rq", "queue": queue.name, "queue_key": queue.key, "job_key": _text(job.key)})


class StalledJobs:
    """
    The hooks of one worker that put jobs back. They run in the recovery lane, on the library's connections.

    Args:
        worker: whose job class, queue class and serializer are used.

    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def register(self, pm: pluggy.PluginManager) -> None:
        """Put the hooks on a manager."""
        marker = hookimpl_for(pm)

        def echomq_job_stalled(job: StalledJob) -> bool | None:
            return self._with_job(job, put_back_stalled)

        def echomq_job_abandoned(job: StalledJob) -> None:
            self._with_job(job, fail_abandoned)

        hooks = HookNamespace(
            echomq_job_stalled=marker(echomq_job_stalled), echomq_job_abandoned=marker(echomq_job_abandoned)
        )
        pm.register(hooks, NAME)

    def _with_job(self, stalled: StalledJob, work: Work) -> bool | None:
        told = _read_payload(stalled.payload)
        if told is None:
            return None
        plugin = self._worker.lock_plugin
        # This thread may not be the worker's, nor its hub the worker's hub: RQ's own client stays out of it.
        found = plugin.connections.call(
            "put a stalled RQ job back",
            lambda client: self._find(stalled, told, work, client),
            limit_ms=plugin.options.hook_limit_ms,
        )
        return True if found else None

    def _find(self, stalled: StalledJob, told: dict[str, str], work: Work, client: Client) -> bool:
        worker = self._worker
        queue = worker.queue_class(
            told["queue"], connection=client, job_class=worker.job_class, serializer=worker.serializer
        )
        if queue.key != told["queue_key"] or _text(worker.job_class.key_for(stalled.job_id)) != told["job_key"]:
            return False  # of an app with classes of its own: its workers know where its jobs are
        try:
            job = worker.job_class.fetch(stalled.job_id, connection=client, serializer=worker.serializer)
        except NoSuchJobError:
            return True  # it ended, and was kept for no time at all
        lock_key = QueueKeys(worker.lock_plugin.options.prefix, stalled.queue).lock(stalled.job_id)
        work(stalled, job, queue, lock_key)
        return True


def put_back_stalled(stalled: StalledJob, job: Job, queue: Queue, lock_key: str) -> None:
    """Put the job back, unless RQ has recorded that the dead run ended, or the job waits or runs again already."""
    if _has_ended(job) or _waits(job, queue):
        return
    with queue.connection.pipeline() as pipeline:
        try:
            # Nothing is written should the job start again meanwhile.
            pipeline.watch(lock_key, job.key)
            if pipeline.exists(lock_key):
                return
            pipeline.multi()
            _put_back(job, queue, pipeline)
            pipeline.execute()
        except WatchError:
            logger.info("RQ job %s moves by itself, so it is not put back", job.id)


def requeue(job: Job, queue: Queue) -> None:
    """Put a run's job back into its queue in one transaction, as RQ does for a retry."""
    with queue.connection.pipeline() as pipeline:
        _put_back(job, queue, pipeline)
        pipeline.execute()


def fail_abandoned(stalled: StalledJob, job: Job, queue: Queue, lock_key: str) -> None:
    """Let RQ show the job as failed, with a message that says why."""
    if _has_ended(job) or queue.connection.exists(lock_key):
        return
    why = (
        f"Given up by echomq-plugin: {stalled.stalled_count} workers died while they ran this job, "
        f"the last one was {stalled.worker}. ECHOMQ_MAX_STALLED_COUNT says how often a job is put back."
    )
    with queue.connection.pipeline() as pipeline:
        _remove_executions(job, queue, pipeline)
        pipeline.lrem(queue.key, 0, job.id)
        job.set_status(JobStatus.FAILED, pipeline=pipeline)
        job._handle_failure(why, pipeline)
        pipeline.execute()
    _call_failure_callback(job, why)
    if hasattr(job, "send_webhooks"):
        job.send_webhooks(JobStatus.FAILED, exc_string=why)
    queue.enqueue_dependents(job)
    if release_slot is not None:
        release_slot(job)


def _has_ended(job: Job) -> bool:
    status = job.get_status(refresh=False)
    if status == JobStatus.FAILED:
        # RQ's own sweep may have been first: such a run has not ended, its worker died.
        return AbandonedJobError.__name__ not in _failure_of(job)
    # Scheduled, deferred: its retry, or its next turn, will come without us.
    return status not in (JobStatus.STARTED, JobStatus.QUEUED)


def _failure_of(job: Job) -> str:
    result = job.latest_result()
    return str((result.exc_string if result is not None else None) or job._exc_info or "")


def _waits(job: Job, queue: Queue) -> bool:
    return job.get_status(refresh=False) == JobStatus.QUEUED and queue.get_job_position(job) is not None


def _put_back(job: Job, queue: Queue, pipeline: Any) -> None:
    _remove_executions(job, queue, pipeline)
    queue.failed_job_registry.remove(job, pipeline=pipeline)
    pipeline.persist(job.key)
    pipeline.lrem(queue.intermediate_queue_key, 0, job.id)
    # What `Job.retry` calls: dependencies were met when the job started, and a slot of a rate limit stays taken.
    # In front: its turn had come before that of all that waits.
    queue._enqueue_job(job, pipeline=pipeline, at_front=True)


def _remove_executions(job: Job, queue: Queue, pipeline: Any) -> None:
    """Remove the records of dead runs, also those that RQ can no longer fetch because their own keys ran out."""
    registry_key = queue.started_job_registry.key
    pattern = "".join("\\" + letter if letter in "*?[]\\^-" else letter for letter in job.id) + ":*"
    members = [member for member, _ in queue.connection.zscan_iter(registry_key, match=pattern, count=1000)]
    if members:
        pipeline.zrem(registry_key, *members)
    pipeline.delete(job.execution_registry.key)
    for member in members:
        _, _, execution_id = _text(member).rpartition(":")
        pipeline.delete(Execution(execution_id, job.id, queue.connection).key)


class _NoLimit(BaseDeathPenalty):
    """RQ's own limit needs the main thread; the hook's limit holds here."""

    def setup_death_penalty(self) -> None:
        pass

    def cancel_death_penalty(self) -> None:
        pass


def _call_failure_callback(job: Job, why: str) -> None:
    if not job.failure_callback:
        return
    error = AbandonedJobError(why)
    try:
        with _NoLimit(0):
            job.failure_callback(job, job.connection, AbandonedJobError, error, None)
    except Exception:
        logger.exception("failure callback of RQ job %s raised", job.id)


def _read_payload(payload: bytes | str | None) -> dict[str, str] | None:
    try:
        told = json.loads(payload or "null")
    except ValueError:
        return None
    return told if isinstance(told, dict) and told.get("host") == "rq" else None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
