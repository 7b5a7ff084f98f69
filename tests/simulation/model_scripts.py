"""
The package's scripts in Python, over a ``ModelServer``: each as its file in ``lua/`` says.

``test_model.py`` proves each equal to its Lua on a real server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from .model_server import ModelServer

Script = Callable[["ModelServer", tuple[str, ...], tuple[Any, ...]], Any]


def extend_locks(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    base, tokens, job_ids, life = arguments
    failed = []
    for job_id, token in zip(msgpack.unpackb(job_ids), msgpack.unpackb(tokens), strict=True):
        lock = f"{base}{job_id}:lock"
        if server.get(lock) == token:
            server.set(lock, token, life)
            members = server.sets.get(keys[0])
            if members is not None:
                members.discard(job_id)
        else:
            failed.append(job_id)
    return failed


def acquire_lock(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    lock, held, data_key, claim_key, seen, fence = keys
    job_id, token, life, data = arguments
    holder, entry = server.get(lock), server.hget(held, job_id)
    if holder is not None and holder != token:
        if entry == holder:
            server.hset(claim_key, job_id, f"relied on: {holder} 0")
        return [0, holder, entry, server.hget(data_key, job_id), server.left_ms(lock)]
    server.set(lock, token, life)
    server.hset(held, job_id, token)
    server.hset(data_key, job_id, data)
    mark = f"relied on: {token} 0"
    if entry is not None and entry != token:
        server.hset(claim_key, job_id, mark)
    elif server.hget(claim_key, job_id) != mark:
        server.hdel(claim_key, job_id)
    server.hdel(seen, job_id)
    number = int(server.strings.get(fence, ("0", None))[0]) + 1
    server.strings[fence] = (str(number), None)
    server.watch("taken", job_id, token, data)
    return [1, number]


def release_lock(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    lock, held, data_key, claim_key, seen, count = keys
    job_id, token, keep_entry, keep_count = arguments
    holder, entry = server.get(lock), server.hget(held, job_id)
    if holder is not None and holder != token:
        return "lost"
    if holder is None:
        if entry is None:
            return "gone"
        if entry != token:
            return "lost"
        claim = server.hget(claim_key, job_id)
        if claim is not None and _claim_end(claim) > server.now_ms():
            return "lost"
    if holder is not None:
        server.delete(lock)
    if keep_entry == "1":
        server.watch("let go", job_id, token)
    relied_on = keep_entry == "2" and server.hget(claim_key, job_id) is not None
    if keep_entry != "1" and not relied_on and entry == token:
        for key in (held, data_key, claim_key, seen):
            server.hdel(key, job_id)
    if keep_count != "1":
        server.hdel(count, job_id)
        server.watch("count gone", job_id)
    return "released"


def renew_lock(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    token, life = arguments
    if server.get(keys[0]) != token:
        return 0
    server.set(keys[0], token, life)
    return 1


def restore_entries(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    held, data_key, fence_key, *locks = keys
    written = 0
    fence = int(server.strings.get(fence_key, ("0", None))[0])
    for position, lock in enumerate(locks):
        job_id, token, data, number = arguments[position * 4 : position * 4 + 4]
        forgotten = int(number) == 0 or fence < int(number)
        if server.get(lock) is not None or server.hget(held, job_id) is not None:
            continue
        if not forgotten:
            server.watch("not restored", job_id, token)
        else:
            server.watch("restored", job_id, token)
            server.hset(held, job_id, token)
            server.hset(data_key, job_id, data)
            written += 1
    return written


def win_check(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    worker, pause_ms, grace_ms, serves = arguments
    left = server.left_ms(keys[0])
    if serves == "1":
        left -= int(grace_ms)
    if left > 0:
        return left
    server.set(keys[0], worker, int(pause_ms) + int(grace_ms))
    return 0


def mark_lockless(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    held, data_key, seen, *locks = keys
    dead = []
    for job_id, lock in zip(arguments, locks, strict=True):
        token = server.hget(held, job_id)
        if token is None or server.hget(data_key, job_id) is None or server.get(lock) is not None:
            server.hdel(seen, job_id)
        elif server.hget(seen, job_id) == token:
            dead += [job_id, token]
        else:
            server.hset(seen, job_id, token)
    return dead


def claim_stalled(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    held, data_key, claim_key, count_key, *locks = keys
    claim_token, claim_ms, _, *jobs = arguments
    now = server.now_ms()
    claimed: list[Any] = []
    for number, lock in enumerate(locks):
        job_id, token = jobs[number * 2 : number * 2 + 2]
        claim = server.hget(claim_key, job_id)
        free = claim is None or _claim_end(claim) <= now
        if free and server.hget(held, job_id) == token and server.get(lock) is None:
            server.hset(claim_key, job_id, f"{claim_token} {now + int(claim_ms)}")
            count, counted_for = _count(server.hget(count_key, job_id))
            if counted_for != token:
                count += 1
                server.hset(count_key, job_id, f"{count} {token} {now}")
            server.watch("claimed", job_id, token, count)
            claimed += [job_id, server.hget(data_key, job_id) or b"", count]
    return claimed


def keep_claims(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    claim_token, claim_ms, *job_ids = arguments
    kept = [job_id for job_id in job_ids if _claimed_by(server, keys[0], job_id) == claim_token]
    for job_id in kept:
        server.hset(keys[0], job_id, f"{claim_token} {server.now_ms() + int(claim_ms)}")
    return kept


def drop_entries(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    held, data_key, claim_key, seen, count_key = keys
    claim_token, forget_count, *jobs = arguments
    dropped = 0
    for job_id, token in zip(jobs[::2], jobs[1::2], strict=True):
        if _claimed_by(server, claim_key, job_id) == claim_token:
            server.hdel(claim_key, job_id)
            if server.hget(held, job_id) == token:
                for key in (held, data_key, seen):
                    server.hdel(key, job_id)
                if forget_count == "1":
                    server.hdel(count_key, job_id)
                    server.watch("count gone", job_id)
                dropped += 1
    return dropped


def return_claims(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    claim_key, count_key = keys
    claim_token, *jobs = arguments
    returned = 0
    for job_id, token in zip(jobs[::2], jobs[1::2], strict=True):
        if _claimed_by(server, claim_key, job_id) == claim_token:
            server.hset(claim_key, job_id, f"relied on: {token} 0")
            found = server.hget(count_key, job_id)
            count, counted_for = _count(found)
            if counted_for == token:
                server.watch("returned", job_id, token)
                if count <= 1:
                    server.hdel(count_key, job_id)
                else:
                    server.hset(count_key, job_id, f"{count - 1}  {found.rsplit(' ', 1)[1]}")
            returned += 1
    return returned


def prune_counts(server: ModelServer, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> Any:
    held, count_key = keys
    kept_ms, *job_ids = arguments
    forgotten = 0
    for job_id in job_ids:
        found = server.hget(count_key, job_id)
        old = found is not None and int(found.rsplit(" ", 1)[1]) + int(kept_ms) <= server.now_ms()
        if old and server.hget(held, job_id) is None:
            server.hdel(count_key, job_id)
            server.watch("count gone", job_id)
            forgotten += 1
    return forgotten


def _claim_end(claim: str) -> int:
    return int(claim.rsplit(" ", 1)[1])


def _claimed_by(server: ModelServer, key: str, job_id: str) -> str | None:
    claim = server.hget(key, job_id)
    return None if claim is None else claim.rsplit(" ", 1)[0]


def _count(found: str | None) -> tuple[int, str | None]:
    if found is None:
        return 0, None
    count, counted_for, _ = found.split(" ", 2)
    return int(count), counted_for


SCRIPTS: dict[str, Script] = {
    "extendLocks-1": extend_locks,
    "acquireLock-6": acquire_lock,
    "releaseLock-6": release_lock,
    "renewLock-1": renew_lock,
    "restoreEntries": restore_entries,
    "winCheck-1": win_check,
    "markLockless": mark_lockless,
    "claimStalled": claim_stalled,
    "keepClaims-1": keep_claims,
    "dropEntries-5": drop_entries,
    "returnClaims-2": return_claims,
    "pruneCounts-2": prune_counts,
}
