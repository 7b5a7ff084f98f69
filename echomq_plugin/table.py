"""LockTable: the tracked locks and the releases that still wait for an answer, shared by all threads of a process."""

from __future__ import annotations

from dataclasses import dataclass

from echomq_plugin.native import allocate_lock
from echomq_plugin.tracking import TrackedLocks


@dataclass(frozen=True, slots=True)
class PendingRelease:
    """
    A lock to give back as soon as Redis answers.

    Attributes:
        queue: the queue.
        job_id: the job.
        token: the lock's token.
        keep_entry: the entry stays for the sweep.
        keep_count: the stalled count stays.
        undecided: the start was never answered, so nobody ran the job.
        entry: the entry's data, where it is to be written again should the server have forgotten it.
        fence: the fence number of the start, by which that is seen.

    """

    queue: str
    job_id: str
    token: str
    keep_entry: bool = False
    keep_count: bool = False
    undecided: bool = False
    entry: bytes | None = None
    fence: int = 0


class LockTable:
    """
    Shared state of one process.

    ``lock`` is native, never gevent's, and held for microseconds: no I/O and no switch of greenlets happens under it.
    """

    def __init__(self, tracked: TrackedLocks) -> None:
        self.lock = allocate_lock()
        self.tracked = tracked
        self.releases: dict[tuple[str, str, str], PendingRelease] = {}

    def is_idle(self) -> bool:
        """Tell whether nothing is tracked and no release waits."""
        with self.lock:
            return not len(self.tracked) and not self.releases

    def active(self) -> list[str]:
        """Return the ids of the jobs that have not ended, oldest first."""
        with self.lock:
            return self.tracked.active_job_ids()

    def mark_ended(self, queue: str, job_id: str, token: str, *, entry_stays: bool) -> None:
        """Note that a job has ended: its lock is renewed until it is given back, but no loss of it is reported."""
        with self.lock:
            lock = self.tracked.get(queue, job_id)
            if lock is not None and lock.token == token:
                lock.ended, lock.entry_stays = True, entry_stays

    def add_release(self, release: PendingRelease) -> None:
        """Remember a release; its lock, if tracked, is renewed until the release is answered."""
        with self.lock:
            self.releases[release.queue, release.job_id, release.token] = release
            lock = self.tracked.get(release.queue, release.job_id)
            if lock is not None and lock.token == release.token:
                lock.ended = True

    def settle_release(self, release: PendingRelease) -> None:
        """Forget a release that was answered, and its lock."""
        with self.lock:
            self.releases.pop((release.queue, release.job_id, release.token), None)
            self.tracked.untrack(release.queue, release.job_id, release.token)
