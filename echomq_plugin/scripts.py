"""Scripts: the calls that take, keep and give back locks, with their arguments and replies as Python values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from echomq_plugin.connections import Client
from echomq_plugin.errors import RedisCallError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.wire import MOST_IDS_A_CALL, Command, Wire, call_error, chunks, packed, text


@dataclass(frozen=True, slots=True)
class Batch:
    """Locks of one queue that one EVALSHA renews; ``job_ids`` and ``tokens`` pair up."""

    keys: QueueKeys
    job_ids: Sequence[str]
    tokens: Sequence[str]


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock was taken; ``fence`` grows with every start in its queue."""

    fence: int


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """Another token holds the lock; ``entry_token`` and ``entry_data`` are the entry's, if there is one."""

    token: str
    entry_token: str | None
    entry_data: bytes | None
    left_ms: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """What the server knows of a job: the token of its lock and of its entry, None where there is none."""

    lock_token: str | None
    entry_token: str | None


def failed_ids(reply: object) -> list[str]:
    """Read the frozen script's reply: a list of ids, else it is an error."""
    if not isinstance(reply, list):
        raise TypeError(f"extendLocks-1 replied {reply!r}, not a list of ids")
    return [text(item) for item in reply]


def _failed_ids_or_error(reply: object) -> list[str] | RedisCallError:
    try:
        if isinstance(reply, Exception):
            raise reply
        return failed_ids(reply)
    except Exception as error:
        return call_error("renew locks", error)


class Scripts(Wire):
    """The calls that take, keep and give back locks."""

    names = ("extendLocks-1", "acquireLock-6", "releaseLock-6", "renewLock-1", "restoreEntries")

    # -- the protocol ------------------------------------------------------------------------------------------------

    def extend_locks(self, batches: Sequence[Batch], lock_duration: int) -> list[list[str] | RedisCallError]:
        """
        Renew batches by the frozen script: in one round trip, or on a cluster side by side.

        Args:
            batches: one for each queue, or several of one queue.
            lock_duration: in ms.

        Returns:
            for each batch the ids that were not renewed, or the error of that batch alone.

        """
        script = self._lua["extendLocks-1"]
        commands = [
            Command(
                script,
                (batch.keys.stalled,),
                (batch.keys.base, packed(batch.tokens), packed(batch.job_ids), lock_duration),
            )
            for batch in batches
        ]
        results = [_failed_ids_or_error(reply) for reply in self.run_all("renew locks", commands)]
        if any(isinstance(result, RedisCallError) for result in results):
            self.connections.drop_idle()
        return results

    # -- one job -----------------------------------------------------------------------------------------------------

    def acquire(
        self, keys: QueueKeys, job_id: str, token: str, lock_duration: int, entry: bytes
    ) -> Acquired | HeldElsewhere:
        """Take a job's lock and write its entry, or learn who holds it. Safe to repeat with the same token."""
        reply = self.run(
            "take a lock",
            "acquireLock-6",
            (keys.lock(job_id), keys.held, keys.held_data, keys.held_claim, keys.held_seen, keys.fence),
            (job_id, token, lock_duration, entry),
            lambda reply: (int(reply[0]), reply),
        )[1]
        if int(reply[0]) == 1:
            return Acquired(int(reply[1]))
        _, holder, entry_token, data, left = reply
        return HeldElsewhere(text(holder), None if entry_token is None else text(entry_token), data, int(left))

    def release(self, keys: QueueKeys, job_id: str, token: str, *, keep_entry: bool, keep_count: bool) -> str:
        """Give a job's lock back. Returns ``released``, ``lost`` or ``gone``."""
        return self.run(
            "give a lock back", *self._release(keys, job_id, token, "1" if keep_entry else "0", keep_count), text
        )

    def release_many(self, releases: Sequence[tuple[QueueKeys, str, str, str, bool]]) -> list[str | RedisCallError]:
        """
        Give many locks back in one round trip; each answer stands alone.

        Args:
            releases: queue, job id, token, whether the entry stays (see releaseLock-6), whether the count stays.

        """
        commands = [
            Command(self._lua[name], key_names, arguments)
            for name, key_names, arguments in (self._release(*release) for release in releases)
        ]
        return [
            call_error("give locks back", reply) if isinstance(reply, Exception) else text(reply)
            for reply in self.run_all("give locks back", commands)
        ]

    def _release(
        self, keys: QueueKeys, job_id: str, token: str, entry_stays: str, keep_count: bool
    ) -> tuple[str, tuple[str, ...], tuple[Any, ...]]:
        key_names = (keys.lock(job_id), keys.held, keys.held_data, keys.held_claim, keys.held_seen, keys.stalled_count)
        return "releaseLock-6", key_names, (job_id, token, entry_stays, "1" if keep_count else "0")

    def confirm(self, keys: QueueKeys, job_id: str, token: str) -> bool:
        """Tell whether a lock has this token, as the master knows it now."""

        def ask(client: Client) -> bool:
            holder = client.execute_command("GET", keys.lock(job_id))
            return holder is not None and text(holder) == token

        return self.connections.call("confirm a lock", ask)

    def renew_one(self, keys: QueueKeys, job_id: str, token: str, lock_duration: int) -> bool:
        """Renew one lock by its own key. False: it is not ours."""
        return self.run("renew a lock", "renewLock-1", (keys.lock(job_id),), (token, lock_duration), int) == 1

    # -- losses ------------------------------------------------------------------------------------------------------

    def look_up(self, keys: QueueKeys, job_ids: Sequence[str]) -> list[Ownership]:
        """
        Learn who holds jobs, and what their entries say.

        One command for each key, so that a cluster that is moving the slot sends each to where the key is.
        """

        def ask(client: Client, chunk: list[str]) -> list[Ownership]:
            commands: list[tuple[Any, ...]] = [("GET", keys.lock(job_id)) for job_id in chunk]
            commands.append(("HMGET", keys.held, *chunk))
            if self.connections.is_cluster:
                replies = [client.execute_command(*command) for command in commands]
            else:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                replies = pipeline.execute()
            return [
                Ownership(None if lock is None else text(lock), None if entry is None else text(entry))
                for lock, entry in zip(replies[:-1], replies[-1], strict=True)
            ]

        found: list[Ownership] = []
        for chunk in chunks(job_ids, MOST_IDS_A_CALL):
            found += self.connections.call("look up locks", partial(ask, chunk=chunk))
        return found

    def restore_entries(self, keys: QueueKeys, jobs: Sequence[tuple[str, str, bytes, int]]) -> int:
        """
        Write the entries of jobs again that have neither lock nor entry.

        Args:
            keys: of the queue.
            jobs: job id, token, entry data, fence number. A fence other than 0: only if the server's counter shows
                that it has forgotten that start, and not that another run has ended the job since.

        """
        written = 0
        for chunk in chunks(jobs, MOST_IDS_A_CALL):
            locks = tuple(keys.lock(job[0]) for job in chunk)
            arguments = tuple(word for job in chunk for word in job)
            written += self.run(
                "restore entries", "restoreEntries", (keys.held, keys.held_data, keys.fence, *locks), arguments, int
            )
        return written
