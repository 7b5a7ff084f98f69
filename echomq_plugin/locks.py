"""Lock: what a host gets when a job starts, and hands back when it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol

from echomq_plugin.errors import OwnershipUnknownError
from echomq_plugin.events import FinishResult, LostLock, Outcome
from echomq_plugin.native import pause

ASK_AGAIN_S: Final = 0.25
"""How soon a question that got no answer is asked again, in seconds."""


class LockOwner(Protocol):
    """What a lock asks its plugin."""

    def confirm(self, lock: Lock) -> bool:
        """Ask the server."""
        ...

    def believes(self, lock: Lock) -> bool:
        """Ask this process."""
        ...

    def cancel_with(self, lock: Lock, cancel: Callable[[Lock, LostLock], object]) -> None:
        """Name the way to stop its job."""
        ...

    def finish(self, lock: Lock, outcome: Outcome) -> FinishResult:
        """Give the lock back."""
        ...


class Lock:
    """
    The lock of one run of one job.

    Attributes:
        owner: who keeps it: the attachment it was started through.
        queue: the queue.
        job_id: the job.
        token: what the lock key holds.
        delivery: the delivery that the run was started from, or None.
        fence: grows with every start in its queue: pass it along with the job's own writes, and let the storage refuse
            a smaller one. 0 where the host took the lock itself.
        given: whether the host took the lock itself, and gives it back itself.
        entry: the entry's data, or None where there is none of ours.
        pid: the process that runs the job: only it gives the lock back.
        lost: the report of its loss, once it is lost.
        result: what became of it, once the job has ended.

    """

    __slots__ = ("delivery", "entry", "fence", "given", "job_id", "lost", "owner", "pid", "queue", "result", "token")

    def __init__(
        self,
        owner: LockOwner,
        queue: str,
        job_id: str,
        token: str,
        *,
        delivery: str | None = None,
        fence: int = 0,
        given: bool = False,
        entry: bytes | None = None,
    ) -> None:
        self.owner = owner
        self.queue = queue
        self.job_id = job_id
        self.token = token
        self.delivery = delivery
        self.fence = fence
        self.given = given
        self.entry = entry
        self.pid = os.getpid()
        self.lost: LostLock | None = None
        self.result: FinishResult | None = None

    def __repr__(self) -> str:
        return f"<Lock of job {self.job_id!r} of queue {self.queue!r}>"

    @property
    def believed(self) -> bool:
        """
        Whether this process still believes to hold it: no I/O, so another run may already know better.

        A lock that the host took (``token=``) counts from when it was handed over, though its age is unknown: what is
        unknown is not lost, and a job that looks here must not stop for it. ``confirm`` asks.
        """
        return self.lost is None and self.owner.believes(self)

    def confirm(self) -> bool:
        """
        Ask the server whether the lock is still ours: one round trip, before the host writes a result.

        Raises:
            OwnershipUnknownError: Redis gave no answer. Write nothing until it does.

        """
        return self.owner.confirm(self)

    def confirm_in_time(self, *, despite: tuple[type[BaseException], ...] = ()) -> bool:
        """
        Ask as ``confirm`` does until Redis answers, or until the lock has surely run out: then it is not ours.

        For hosts that have nothing better to do with a finished run until then. Switches greenlets.

        Args:
            despite: what may be raised into the wait without ending it: the host's time limit, of a run that has ended.
                A loser must not write that it failed.

        """
        while True:
            try:
                return self._confirm_in_time()
            except despite:
                pass

    def _confirm_in_time(self) -> bool:
        while self.believed:
            try:
                return self.confirm()
            except OwnershipUnknownError:
                pause(ASK_AGAIN_S)
        return False
