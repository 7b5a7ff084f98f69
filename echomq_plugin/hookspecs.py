"""
Every hook of the library.

Each docstring says: when, from which greenlet or thread, the arguments with their units, what the result does, and
what happens when an implementation raises. Notification hooks take no wrappers: each implementation is called by
itself, so that one that raises or hangs keeps no other from being called.
"""

from __future__ import annotations

from echomq_plugin.events import FinishResult, LostLock, Outcome, StalledJob
from echomq_plugin.locks import Lock

PREFIX = "echomq_"


def echomq_job_start(
    queue: str, job_id: object, delivery: str | None, payload: bytes | str | None, token: object | None
) -> Lock | None:
    """
    Take the lock of a job and keep it alive. The host calls this before it runs the job.

    When: before the job runs. From: the greenlet or thread that will run it, or the one that dispatches it.

    Arguments:
        queue: the queue, as it stands in the keys (no ``:``).
        job_id: text, an int or ASCII bytes.
        delivery: names this delivery among all deliveries of the job, or None where the host has no such name.
        payload: what ``echomq_job_stalled`` needs to put the job back, or None.
        token: the token under which the host already took the lock, or None.

    Result: the first one counts, and it is the library's. ``LockHeldError`` and ``StartUndecidedError`` mean: do not
    run the job now. Raises: whatever is raised reaches the host.

    """
    raise NotImplementedError


def echomq_job_finish(lock: Lock, outcome: Outcome) -> FinishResult | None:
    """
    Give the lock of a job back. The host calls this after it has written the job's result.

    When: at every end of a job. From: any greenlet or thread.

    Arguments:
        lock: what ``echomq_job_start`` returned.
        outcome: ``completed``, ``failed``, ``cancelled``: all traces go; ``retry``, ``requeued``: the stalled count
            stays; ``interrupted``: the lock goes and the entry stays, so that the sweep puts the job back.

    Result: the first one counts, and it is the library's. Raises: nothing for Redis' sake.

    """
    raise NotImplementedError


def echomq_lock_lost(queue: str, lost: tuple[LostLock, ...]) -> None:
    """
    Locks are lost: other runs may own these jobs now. Their own runs have been cancelled already.

    When: once for each tick and queue with losses; each lost lock is reported once. From: the notices lane.

    Arguments:
        queue: the queue.
        lost: one ``LostLock`` for each lock.

    Result: ignored. Raises: logged with the plugin's name; the others are called all the same.

    """


def echomq_locks_renewed(queue: str, job_ids: tuple[str, ...]) -> None:
    """
    Locks were renewed.

    When: after each batch. From: the notices lane; under pressure some of these are dropped.

    Arguments:
        queue: the queue.
        job_ids: the jobs.

    Result: ignored. Raises: logged with the plugin's name.

    """


def echomq_renewal_failed(
    queue: str, job_ids: tuple[str, ...], error: BaseException, retry_in_ms: int, at_risk_in_ms: int
) -> None:
    """
    A call to Redis failed: whether these locks are still ours is unknown. They are not lost.

    When: after each failed call. From: the notices lane.

    Arguments:
        queue: the queue.
        job_ids: the jobs of the call.
        error: what went wrong.
        retry_in_ms: when the call is repeated, in ms.
        at_risk_in_ms: when the first of the locks can no longer be trusted, in ms.

    Result: ignored. Raises: logged with the plugin's name.

    """


def echomq_check_failed(queue: str | None, error: BaseException, retry_in_ms: int) -> None:
    """
    A pass of the stalled checker failed, or a stalled job could not be put back. Its entry stays, so it is tried again.

    When: after each failure. From: the notices lane.

    Arguments:
        queue: the queue, or None where the queues could not be listed.
        error: what went wrong; ``NobodyPutBackError`` where no plugin took the job.
        retry_in_ms: when it is tried again, in ms.

    Result: ignored. Raises: logged with the plugin's name.

    """


def echomq_job_stalled(job: StalledJob) -> bool | None:
    """
    A worker died while it ran this job: put the job back into its queue.

    When: once the job's entry has had no lock in two passes. From: the recovery lane.

    Arguments:
        job: the job, with the payload that was given at its start.

    Result: True when the job is in its queue again, None when it is not yours. The first True ends the calls; when
    nobody says True, the entry stays and the count does not move. It may be called twice for one death, so put back
    idempotently. Raises: logged with the plugin's name; counts as None.

    """
    raise NotImplementedError


def echomq_job_recovered(job: StalledJob) -> None:
    """
    A stalled job is back in its queue.

    When: after ``echomq_job_stalled`` said True. From: the notices lane.

    Arguments:
        job: the job.

    Result: ignored. Raises: logged with the plugin's name.

    """


def echomq_job_abandoned(job: StalledJob) -> None:
    """
    A job stalled more than ``max_stalled_count`` times and is given up: let the host fail it in its own way.

    When: instead of ``echomq_job_stalled``; at least once. From: the recovery lane.

    Arguments:
        job: the job, with its count.

    Result: ignored. Raises: logged with the plugin's name; the job is given up all the same, but where Redis gave no
    answer (``RedisCallError``, ``redis.RedisError``): then the entry stays, and the hook is called again.

    """


FIRST_RESULT = ("echomq_job_start", "echomq_job_finish", "echomq_job_stalled")

SPECS = {
    function.__name__: function
    for function in (
        echomq_job_start,
        echomq_job_finish,
        echomq_lock_lost,
        echomq_locks_renewed,
        echomq_renewal_failed,
        echomq_check_failed,
        echomq_job_stalled,
        echomq_job_recovered,
        echomq_job_abandoned,
    )
}
