"""JobLocks: what happens to a lock when its job starts, ends, or loses it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from echomq_plugin.callers import Caller
from echomq_plugin.entries import EntryData, checked_payload
from echomq_plugin.errors import (
    InvalidIdError,
    LockHeldError,
    OptionError,
    OwnershipUnknownError,
    RedisCallError,
    StartUndecidedError,
)
from echomq_plugin.events import OUTCOMES, FinishResult, LocksLost, LostLock, Outcome
from echomq_plugin.keys import OWN_NAMES, QueueKeys, text_id
from echomq_plugin.lock_manager import LockManager
from echomq_plugin.locks import Lock
from echomq_plugin.log import log_hook_failure
from echomq_plugin.options import LockOptions
from echomq_plugin.scripts import Acquired, HeldElsewhere, Scripts
from echomq_plugin.table import PendingRelease

Cancel = Callable[[Lock, LostLock], object]


class JobLocks:
    """
    The locks of the jobs that run in this process.

    Args:
        manager: keeps them alive.
        scripts: the wire.
        options: durations and limits.
        worker: gives this worker's name, for people who look.
        boot: starts the process' part before a queue's first job; raises what ``LockPlugin.start`` raises.
        cancel: the host's way to stop a job; None: only what ``cancel_with`` names.

    """

    def __init__(
        self,
        manager: LockManager,
        scripts: Scripts,
        *,
        options: LockOptions,
        worker: Callable[[], str],
        boot: Callable[[str], None],
        cancel: Cancel | None,
    ) -> None:
        self.manager = manager
        self.scripts = scripts
        self.options = options
        self.worker = worker
        self.cancel = cancel
        self._boot = boot
        self._live: dict[tuple[str, str, str], tuple[Lock, Cancel | None]] = {}

    def start(
        self,
        queue: str,
        job_id: object,
        delivery: object | None = None,
        payload: bytes | str | None = None,
        token: object | None = None,
    ) -> Lock:
        """
        Take the lock of a job and track it: the implementation of ``echomq_job_start``. Switches greenlets.

        Raises:
            LockHeldError: another run holds it.
            StartUndecidedError: Redis gave no answer.
            IdTypeError, InvalidIdError, InvalidNameError: an argument cannot be part of a key, or of an entry.
            AttachError, ServerUnsuitableError: this is the process' first job and the process cannot be started.

        """
        keys = QueueKeys(self.options.prefix, queue)
        job = text_id("job_id", job_id)
        given = None if token is None else text_id("token", token)
        name = None if delivery is None else text_id("delivery", delivery)
        payload = checked_payload(payload)
        if given is not None and job in OWN_NAMES:
            raise InvalidIdError("job_id", job, "is a key of this library in every queue: give the job another id")
        try:
            self._boot(queue)
        except RedisCallError as error:
            return self._unlocked(queue, job, error)
        lock = self._acquire(keys, job, name, payload) if given is None else self._adopt(keys, job, name, given)
        try:
            # A `stop` that came while the answer was on its way found nothing to wait for, and ended the renewal.
            self._boot(queue)
        except BaseException as error:
            self.finish(lock, "requeued")
            if isinstance(error, RedisCallError):
                return self._unlocked(queue, job, error)
            raise
        return lock

    def _adopt(self, keys: QueueKeys, job: str, delivery: str | None, token: str) -> Lock:
        """Track a lock that the host took."""
        queue = keys.queue
        replaces = self.manager.is_tracked(job, queue) and (queue, job, token) not in self._live
        if replaces:
            # A run of the job goes on in this process under another token: only the server knows which is the older.
            try:
                [found] = self.scripts.look_up(keys, [job])  # switches greenlets
            except RedisCallError as error:
                raise StartUndecidedError(queue, job) from error
            if found.lock_token != token:
                raise LockHeldError(queue, job, same_delivery=False, retry_in_ms=self.options.denied_pause_ms)
        lock = Lock(self, queue, job, token, delivery=delivery, given=True)
        self._live[queue, job, token] = (lock, None)
        self.manager.track(queue, job, token, renew_now=True, just_taken=replaces)
        return lock

    def _acquire(self, keys: QueueKeys, job: str, delivery: str | None, payload: bytes | str | None) -> Lock:
        token = str(uuid.uuid4())
        entry = EntryData(self.worker(), int(time.time() * 1000), delivery, payload).pack()
        sent_at = self.manager.now_ms()
        try:
            answer = self.scripts.acquire(keys, job, token, self.options.lock_duration, entry)  # switches greenlets
        except BaseException as error:
            # Taken or not, nobody knows: have it given up by token until Redis says that it is.
            self.manager.release_later(PendingRelease(keys.queue, job, token, keep_count=True, undecided=True))
            if isinstance(error, RedisCallError):
                return self._unlocked(keys.queue, job, error)
            raise
        if isinstance(answer, Acquired):
            lock = Lock(self, keys.queue, job, token, delivery=delivery, fence=answer.fence, entry=entry)
            self._live[keys.queue, job, token] = (lock, None)
            self.manager.track(keys.queue, job, token, renewed_at=sent_at, entry=entry, just_taken=True)
            return lock
        raise self._held_error(keys.queue, job, delivery, answer)

    def _held_error(self, queue: str, job: str, delivery: str | None, held: HeldElsewhere) -> LockHeldError:
        # Only an entry that bears the lock's token vouches for the delivery: should the holder die, it brings it back.
        same = (
            delivery is not None
            and held.entry_token == held.token
            and EntryData.unpack(held.entry_data).delivery == delivery
        )
        # A lock without a life (no business of ours) says -1: that must not become a pause of nothing.
        left_ms = held.left_ms if held.left_ms >= 0 else self.options.denied_pause_ms
        pause = max(1, min(self.options.denied_pause_ms, left_ms))
        return LockHeldError(queue, job, same_delivery=same, retry_in_ms=pause)

    def _unlocked(self, queue: str, job: str, error: RedisCallError) -> Lock:
        if self.options.when_unreachable == "run":
            return Lock(self, queue, job, "", given=True)
        raise StartUndecidedError(queue, job) from error

    def finish(self, lock: Lock, outcome: Outcome) -> FinishResult:
        """
        Give the lock of a job back: the implementation of ``echomq_job_finish``. Again: the same result.

        Switches greenlets.

        Raises:
            OptionError: there is no such outcome, or that is no Lock.

        """
        if not isinstance(lock, Lock):
            raise OptionError("lock", lock, "must be the Lock that the start of the job returned")
        if not isinstance(outcome, str) or outcome not in OUTCOMES:
            raise OptionError("outcome", outcome, f"must be one of {', '.join(sorted(OUTCOMES))}")
        if lock.owner is not self:
            # Started through another attachment (detached since, or at another manager): that one renews it.
            return lock.owner.finish(lock, outcome)
        if lock.pid != os.getpid():
            # A child that runs on after a fork in the middle of a job: the job, and its lock, are its parent's.
            return FinishResult.UNKNOWN
        if lock.result is not None:
            return lock.result
        self._live.pop((lock.queue, lock.job_id, lock.token), None)
        # What a second caller is told while the first one waits for the answer: the lock is given back once.
        lock.result = FinishResult.UNKNOWN
        lock.result = self._give_back(lock, outcome)
        return lock.result

    def _give_back(self, lock: Lock, outcome: Outcome) -> FinishResult:
        if not lock.token:
            return FinishResult.UNKNOWN
        if lock.given:
            return self._let_go(lock)
        release = PendingRelease(
            lock.queue,
            lock.job_id,
            lock.token,
            keep_entry=outcome == "interrupted",
            keep_count=outcome in ("retry", "requeued", "interrupted"),
            entry=lock.entry,
            fence=lock.fence,
        )
        believed = self.manager.believes(lock.queue, lock.job_id, lock.token)
        # Before the call: a tick that meets the deleted lock must not call it lost.
        self.manager.mark_ended(lock.queue, lock.job_id, lock.token, entry_stays=release.keep_entry)
        keys = QueueKeys(self.options.prefix, lock.queue)
        try:
            answer = self.scripts.release(  # switches greenlets
                keys, lock.job_id, lock.token, keep_entry=release.keep_entry, keep_count=release.keep_count
            )
        except BaseException as error:
            self.manager.release_later(release)
            if isinstance(error, RedisCallError):
                return FinishResult.UNKNOWN
            raise
        if answer == "gone" and release.keep_entry:
            # The sweep is to bring this job back, and there is nothing left to bring it back from. While we believed,
            # nobody else can have ended it; after that only the fence tells a server that forgot.
            self.manager.release_later(replace(release, fence=0) if believed else release)
        else:
            self.manager.untrack(lock.queue, lock.job_id, lock.token)
        return FinishResult.RELEASED if answer == "released" else FinishResult.LOST

    def _let_go(self, lock: Lock) -> FinishResult:
        """Stop renewing a lock that the host took, and gives back itself, or has given back already."""
        tracked = self.manager.untrack(lock.queue, lock.job_id, lock.token)
        if not tracked or lock.lost is not None:
            return FinishResult.LOST
        try:
            [found] = self.scripts.look_up(QueueKeys(self.options.prefix, lock.queue), [lock.job_id])
        except BaseException as error:
            if isinstance(error, RedisCallError):
                return FinishResult.UNKNOWN
            raise
        return FinishResult.RELEASED if found.lock_token in (None, lock.token) else FinishResult.LOST

    def confirm(self, lock: Lock) -> bool:
        """Ask the server whether a lock is still ours; see ``Lock.confirm``. Switches greenlets."""
        if not lock.token:
            return True
        keys = QueueKeys(self.options.prefix, lock.queue)
        try:
            return self.scripts.confirm(keys, lock.job_id, lock.token)
        except RedisCallError as error:
            raise OwnershipUnknownError(lock.queue, lock.job_id) from error

    def believes(self, lock: Lock) -> bool:
        """Tell, without I/O, whether this process still believes to hold a lock."""
        return not lock.token or self.manager.believes(lock.queue, lock.job_id, lock.token)

    def cancel_with(self, lock: Lock, cancel: Cancel) -> None:
        """
        Name the way to stop one job, should its lock be lost. A lock that is lost already: it is called at once.

        Args:
            lock: the job's lock.
            cancel: called with the Lock and its LostLock in the cancel lane; must be safe from any thread.

        """
        key = (lock.queue, lock.job_id, lock.token)
        if lock.owner is not self:
            lock.owner.cancel_with(lock, cancel)
        elif lock.lost is not None:
            cancel(lock, lock.lost)
        elif key in self._live:
            self._live[key] = (lock, cancel)

    def cancel_jobs(self, report: LocksLost, caller: Caller) -> None:
        """Stop the jobs of lost locks, in the host's way. Runs in the cancel lane."""
        for lost in report.lost:
            key = (report.queue, lost.job_id, lost.token)
            lock, cancel = self._live.get(key, (None, None))
            if lock is None:
                continue  # ended meanwhile
            if lost.reason != "held_too_long":
                lock.lost = lost
                self._live.pop(key, None)
            cancel = cancel or self.cancel
            if cancel is not None:
                self._call_cancel(cancel, lock, lost, caller)

    def _call_cancel(self, cancel: Cancel, lock: Lock, lost: LostLock, caller: Caller) -> None:
        try:
            caller.call(lambda: cancel(lock, lost), self.options.hook_limit_ms)
        except BaseException as error:  # the next lost lock must not wait for a host's mistake
            log_hook_failure(str(cast("object", cancel)), "cancel", error, caller, self.options.hook_limit_ms)
