"""Wrong rules, each of which the checker has to catch. They show that the simulation can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from echomq_plugin.job_locks import JobLocks
from echomq_plugin.releases import Releases
from echomq_plugin.renewal import Renewal
from echomq_plugin.stalled import StalledChecker
from echomq_plugin.tracking import TrackedLock, TrackedLocks

from . import model_scripts
from .model_server import ModelServer
from .world import current_strand


@contextmanager
def stamp_before_the_reply() -> Iterator[None]:
    """``renewed_at`` moves when the call is sent, whether or not it renews anything."""
    send = Renewal._send

    def stamp_and_send(self: Renewal, batches: dict[str, list[TrackedLock]]) -> Any:
        for locks in batches.values():
            for lock in locks:
                lock.renewed_at = self._now_ms()
        return send(self, batches)

    with mock.patch.object(Renewal, "_send", stamp_and_send):
        yield


@contextmanager
def stamp_at_the_reply() -> Iterator[None]:
    """``renewed_at`` moves to when the reply came, not to when the call was sent."""
    settle = TrackedLocks.settle

    def late(self: TrackedLocks, sent: Any, failed: Any, sent_at: int) -> Any:
        return settle(self, sent, failed, current_strand().machine.world.now)

    with mock.patch.object(TrackedLocks, "settle", late):
        yield


@contextmanager
def untrack_by_id_alone() -> Iterator[None]:
    """A run that ends untracks whatever lock its job has."""
    untrack = TrackedLocks.untrack

    def by_id(self: TrackedLocks, queue: str, job_id: str, token: str | None = None) -> TrackedLock | None:
        return untrack(self, queue, job_id)

    with mock.patch.object(TrackedLocks, "untrack", by_id):
        yield


@contextmanager
def drop_any_denied_delivery() -> Iterator[None]:
    """Whatever delivery finds the lock held is dropped."""
    held_error = JobLocks._held_error

    def always_the_same(self: JobLocks, *arguments: Any) -> Any:
        error = held_error(self, *arguments)
        error.same_delivery = True
        return error

    with mock.patch.object(JobLocks, "_held_error", always_the_same):
        yield


@contextmanager
def _other_script(name: str, script: model_scripts.Script) -> Iterator[None]:
    with mock.patch.dict(model_scripts.SCRIPTS, {name: script}):
        yield


def release_without_the_token() -> Any:
    """A release deletes the lock, whoever has it."""

    def release(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        server.delete(keys[0])
        return model_scripts.release_lock(server, keys, arguments)

    return _other_script("releaseLock-6", release)


def release_without_the_token_once_anything_was_forgotten() -> Any:
    """The same, from when the server has forgotten something: of other jobs, say."""

    def release(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        if server.forgets:
            server.delete(keys[0])
        return model_scripts.release_lock(server, keys, arguments)

    return _other_script("releaseLock-6", release)


def count_moved_twice_once_anything_was_forgotten() -> Any:
    """A stall is counted twice, from when the server has forgotten something."""

    def claim(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        if server.forgets:
            for job_id in arguments[3::2]:
                count, token, at = (server.hget(keys[3], job_id) or "0  0").split(" ", 2)
                server.hset(keys[3], job_id, f"{int(count) + 1} {token} {at}")
        return model_scripts.claim_stalled(server, keys, arguments)

    return _other_script("claimStalled", claim)


@contextmanager
def missing_waits_for_the_deadline() -> Iterator[None]:
    """A lock that the server has not got is left to its local deadline."""
    lose = TrackedLocks.lose

    def later(self: TrackedLocks, lost: Any, now: int, hub_blocked_ms: int = 0) -> Any:
        return lose(self, [(lock, reason) for lock, reason in lost if reason != "missing"], now, hub_blocked_ms)

    with mock.patch.object(TrackedLocks, "lose", later):
        yield


@contextmanager
def deadline_comes_early() -> Iterator[None]:
    """A lock is called expired after two thirds of its life."""

    def expired(self: TrackedLocks, now: int, hub_blocked_ms: int = 0) -> Any:
        by = now - hub_blocked_ms - self.lock_duration * 2 // 3
        return self.lose([(lock, "expired") for lock in self._locks.values() if lock.renewed_at <= by], now)

    with mock.patch.object(TrackedLocks, "expired", expired):
        yield


@contextmanager
def interrupted_stays_forgotten() -> Iterator[None]:
    """The entry of an interrupted run that the server forgot is not written again."""
    with mock.patch.object(Releases, "_bring_back", return_value=None):
        yield


@contextmanager
def count_moved_in_the_drop() -> Iterator[None]:
    """The stalled count moves when the job has been put back, not when it is claimed."""
    uncounted: dict[str, Any] = {}

    def claim(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        before = dict(server.hashes.get(keys[3], {}))
        claimed = model_scripts.claim_stalled(server, keys, arguments)
        for job_id in claimed[::3]:
            uncounted[job_id] = server.hget(keys[3], job_id)
            server.hdel(keys[3], job_id)
            if job_id in before:
                server.hset(keys[3], job_id, before[job_id])
        return claimed

    def drop(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        for job_id, token in zip(arguments[2::2], arguments[3::2], strict=True):
            if server.hget(keys[0], job_id) == token and job_id in uncounted:
                server.hset(keys[4], job_id, uncounted.pop(job_id))
        return model_scripts.drop_entries(server, keys, arguments)

    with _other_script("claimStalled", claim), _other_script("dropEntries-5", drop):
        yield


def give_up_takes_the_entry() -> Any:
    """An undecided start that is given up takes the entry with it, even if a delivery was dropped for its sake."""

    def release(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        job_id, token, entry_stays, count_stays = arguments
        return model_scripts.release_lock(
            server, keys, (job_id, token, "0" if entry_stays == "2" else entry_stays, count_stays)
        )

    return _other_script("releaseLock-6", release)


@contextmanager
def unknown_is_lost() -> Iterator[None]:
    """Locks that a call did not confirm are called lost."""

    def lose(self: Renewal, due: list[TrackedLock], hub_blocked_ms: int) -> Any:
        failures = renew(self, due, hub_blocked_ms)
        unknown = {job_id for failure in failures for job_id in failure.job_ids}
        with self._table.lock:
            reports = self._table.tracked.lose(
                [(lock, "missing") for lock in due if lock.job_id in unknown], self._now_ms()
            )
        self._report_lost(reports)
        return failures

    renew = Renewal._renew
    with mock.patch.object(Renewal, "_renew", lose):
        yield


def no_entry_after_forgetting() -> Any:
    """A worker that finds lock and entry forgotten leaves it at that."""
    return _other_script("restoreEntries", lambda *_: 0)


@contextmanager
def queues_stay_forgotten() -> Iterator[None]:
    """A queue is made known once, and never again after the server forgot it."""

    def known(self: StalledChecker) -> list[str]:
        return self._scripts.queues(self._prefix)

    with mock.patch.object(StalledChecker, "_known_queues", known):
        yield


@contextmanager
def one_pass_is_enough() -> Iterator[None]:
    """The sweep takes an entry without a lock for dead at first sight, and so does the claim."""

    def mark(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        dead: list[str] = []
        for job_id in arguments:
            token = server.hget(keys[0], job_id)
            if token is not None:
                dead += [job_id, token]
        return dead

    def claim(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
        for lock in keys[4:]:
            server.delete(lock)
        return model_scripts.claim_stalled(server, keys, arguments)

    with _other_script("markLockless", mark), _other_script("claimStalled", claim):
        yield


MUTATIONS: dict[str, Callable[[], Any]] = {
    mutation.__name__: mutation
    for mutation in (
        stamp_before_the_reply,
        stamp_at_the_reply,
        untrack_by_id_alone,
        drop_any_denied_delivery,
        release_without_the_token,
        release_without_the_token_once_anything_was_forgotten,
        count_moved_twice_once_anything_was_forgotten,
        missing_waits_for_the_deadline,
        deadline_comes_early,
        interrupted_stays_forgotten,
        count_moved_in_the_drop,
        give_up_takes_the_entry,
        unknown_is_lost,
        no_entry_after_forgetting,
        queues_stay_forgotten,
        one_pass_is_enough,
    )
}
