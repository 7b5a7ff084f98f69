"""What is handed to hooks and callbacks: frozen values, one per event. Adding a field breaks nobody."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

LostReason = Literal["missing", "taken", "expired", "held_too_long"]
Outcome = Literal["completed", "failed", "cancelled", "retry", "requeued", "interrupted"]

OUTCOMES: frozenset[str] = frozenset({"completed", "failed", "cancelled", "retry", "requeued", "interrupted"})


class FinishResult(enum.Enum):
    """What became of a lock when its job ended."""

    RELEASED = "released"
    """The lock was still ours, or nobody else had started the job: the end of the job counts."""
    LOST = "lost"
    """Another run owns the job, or may: nothing was touched."""
    UNKNOWN = "unknown"
    """Redis gave no answer: the release is repeated in the background until it does, but for a lock the host took."""


@dataclass(frozen=True, slots=True)
class LostLock:
    """
    One lock that is lost.

    Attributes:
        job_id: the job.
        token: the token the lock had.
        reason: ``missing`` (the key is gone), ``taken`` (the key has another token), ``expired`` (no renewal was
            confirmed for a whole lock duration; the one loss that the server has not confirmed) or ``held_too_long``
            (``max_hold_ms`` passed).
        held_for_ms: from the start of tracking to the report, in ms.
        hub_blocked_ms: how late the renewal greenlet woke for this tick, in ms. With ``dedicated_hub=False`` a large
            figure means that a job kept the hub busy.

    """

    job_id: str
    token: str
    reason: LostReason
    held_for_ms: int
    hub_blocked_ms: int = 0


@dataclass(frozen=True, slots=True)
class StalledJob:
    """
    A job whose worker died: it has an entry, and no lock.

    Attributes:
        queue: the queue.
        job_id: the job.
        payload: what the host gave at the job's start, or None.
        delivery: the delivery it was started from, or None.
        stalled_count: how many times this job has stalled, this time included.
        worker: the dead worker, as it named itself.

    """

    queue: str
    job_id: str
    payload: bytes | str | None
    delivery: str | None
    stalled_count: int
    worker: str = ""


@dataclass(frozen=True, slots=True)
class LocksLost:
    """Report: these locks of one queue are lost."""

    queue: str
    lost: tuple[LostLock, ...]


@dataclass(frozen=True, slots=True)
class LocksRenewed:
    """Report: these locks of one queue were renewed by one batch."""

    queue: str
    job_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    """
    Report: a renewal call failed, so nobody knows who owns these locks.

    Attributes:
        queue: the queue.
        job_ids: the jobs whose locks were to be renewed.
        error: what went wrong.
        retry_in_ms: when the call is repeated, in ms from now.
        at_risk_in_ms: when the first of these locks passes its local deadline, in ms from now.

    """

    queue: str
    job_ids: tuple[str, ...]
    error: BaseException
    retry_in_ms: int
    at_risk_in_ms: int


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """
    Report: a pass of the stalled checker, or the recovery of a job, failed.

    Attributes:
        queue: the queue, or None where the queues themselves could not be listed.
        error: what went wrong.
        retry_in_ms: when the checker tries again, in ms from now.

    """

    queue: str | None
    error: BaseException
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class JobsFoundDead:
    """Report of the sweep: (job id, dead token) pairs whose lock was missing in two passes in a row."""

    queue: str
    dead: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class JobRecovered:
    """Report: a stalled job is back in its queue."""

    job: StalledJob


@dataclass(frozen=True, slots=True)
class JobAbandoned:
    """Report: a job stalled more often than ``max_stalled_count`` allows, and is given up."""

    job: StalledJob


Report = LocksLost | LocksRenewed | RenewalFailed | CheckFailed | JobsFoundDead | JobRecovered | JobAbandoned
