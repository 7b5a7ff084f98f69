"""
The public API as people write it: only type-checked (by mypy, strictly), never run.

What is written here is a promise: when a line no longer type-checks, somebody's code no longer does.
"""

from __future__ import annotations

import pluggy
import redis

from echomq_plugin import (
    EchoMQError,
    FinishResult,
    Lock,
    LockHeldError,
    LockLostError,
    LockManager,
    LockOptions,
    LockPlugin,
    LostLock,
    OwnershipUnknownError,
    StalledJob,
    StartUndecidedError,
    attach,
    hookimpl,
    hookimpl_for,
)

pm = pluggy.PluginManager("anybodys_app")
options = LockOptions(lock_duration=60_000, lock_renew_time=None, max_hold_ms=3_600_000, when_unreachable="refuse")
plugin: LockPlugin = attach(pm, redis.Redis(), "mail", options)
by_url: LockPlugin = attach(pm, "redis://localhost", queue="mail")
by_callable: LockPlugin = attach(pm, redis.Redis, queue="mail")
from_environment: LockOptions = LockOptions.from_env({"ECHOMQ_LOCK_DURATION": "60000"}, prefix="emq")


def lost(job_ids: list[str]) -> None:
    print(", ".join(job_ids))


manager = LockManager(
    redis.Redis(),
    queue="mail",
    prefix="emq",
    lock_duration=30_000,
    lock_renew_time=15_000,
    on_lock_renewal_failed=lost,
    on_locks_renewed=lost,
    on_renewal_error=lambda error: print(repr(error)),
    dedicated_hub=False,
)
manager.start()
manager.track_job("1", "token")
manager.track_job(2, b"token", queue="other")
manager.untrack_job("1")
count: int = manager.get_active_job_count()
ids: list[str] = manager.get_tracked_job_ids()
tracked: bool = manager.is_tracked("1", queue="mail")
stopped: bool = manager.stop(timeout_ms=5_000)


def run(job_id: str) -> bool:
    try:
        lock: Lock = plugin.job_start("mail", job_id, delivery="1", payload=b"...")
    except LockHeldError as held:
        pause: int = held.retry_in_ms
        same: bool = held.same_delivery
        return same or pause > 0
    except StartUndecidedError as undecided:
        cause: EchoMQError = undecided
        raise cause
    try:
        still_ours: bool = lock.confirm()
    except OwnershipUnknownError:
        still_ours = lock.believed and lock.confirm_in_time()
    result: FinishResult = plugin.job_finish(lock, "completed" if still_ours else "interrupted")
    return result is FinishResult.RELEASED


def run_block(job_id: int) -> str:
    try:
        with plugin.job(job_id, queue="mail", payload="...") as lock:
            fence: int = lock.fence
            report: LostLock | None = lock.lost
            return f"{lock.queue} {lock.job_id} {lock.token} {fence} {report}"
    except LockLostError as error:
        return str(error)


class Hooks:
    @hookimpl
    def echomq_lock_lost(self, queue: str, lost: tuple[LostLock, ...]) -> None:
        for lock in lost:
            if lock.reason == "taken":
                print(queue, lock.job_id, lock.held_for_ms, lock.hub_blocked_ms)

    @hookimpl_for(pm)
    def echomq_job_stalled(self, job: StalledJob) -> bool | None:
        return True if job.payload is not None else None


pm.register(Hooks())
ended: bool = plugin.stop(timeout_ms=10_000)
plugin.detach(pm)

# What must not type-check: an ignore that is not needed is an error too.
LockOptions(lock_duration="30s")  # type: ignore[arg-type]
plugin.job_finish("1", "completed")  # type: ignore[arg-type]
manager.track_job("1")  # type: ignore[call-arg]
