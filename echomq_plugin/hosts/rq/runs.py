"""Run: one run of one RQ job, under its lock. Known to the worker, and to the work-horse that it forks or spawns."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError

from echomq_plugin.locks import Lock

RUN_VARIABLE: Final = "ECHOMQ_RQ_RUN"
"""Tells a spawned work-horse which run it is."""

_ASK_AGAIN_S: Final = 0.5


class RunLostError(Exception):
    """
    Raised through RQ's own code when a run has lost its lock: nothing of it may be written.

    It never leaves the adapter's workers.
    """


@dataclass(eq=False)
class Run:
    """
    One run.

    Attributes:
        job_id: the job.
        lock_key: the key of its lock.
        token: what the key must hold; empty where the job runs unlocked by the user's choice.
        patience_ms: how long a work-horse waits for Redis before it takes its lock for lost: one lock duration.
        parent_pid: the worker; a work-horse dies with it.
        lock: the lock, in the worker; None in a spawned work-horse.
        job: the job as RQ's code here knows it.
        execution: RQ's record of this run, once there is one.
        lost: the lock is lost, as far as this process knows.
        completed: RQ has written the result, in this process.
        cancelled: the run is to be stopped, whatever the reason.

    """

    job_id: str
    lock_key: str
    token: str
    patience_ms: int
    parent_pid: int
    lock: Lock | None = None
    job: Any = None
    execution: Any = None
    lost: bool = False
    completed: bool = False
    cancelled: bool = False

    def to_environment(self) -> str:
        """Return what a spawned work-horse needs to know."""
        return json.dumps([self.job_id, self.lock_key, self.token, self.patience_ms, self.parent_pid])

    @classmethod
    def from_environment(cls, job_id: str) -> Run | None:
        """Return the run that a spawned work-horse is, or None where it is not told."""
        told = json.loads(os.environ.get(RUN_VARIABLE, "null"))
        return cls(*told) if told is not None and told[0] == job_id else None

    def still_ours(self, connection: Any) -> bool:
        """
        Ask the server, through RQ's own connection, whether the lock is still this run's. Switches greenlets.

        Called before RQ writes. While Redis gives no answer nothing may be written, so this waits for one as long as
        the lock may still be ours.
        """
        if not self.token:
            return True
        waited_since = time.monotonic()
        while not self.lost:
            try:
                holder = connection.get(self.lock_key)
            except (RedisError, OSError):
                if not self._may_be_ours(waited_since):
                    break
                time.sleep(_ASK_AGAIN_S)
                continue
            if holder not in (self.token, self.token.encode()):
                break
            return True
        self.lost = True
        return False

    def _may_be_ours(self, waited_since: float) -> bool:
        if self.lock is not None and self.lock.pid == os.getpid():
            return self.lock.believed
        return (time.monotonic() - waited_since) * 1000 < self.patience_ms
