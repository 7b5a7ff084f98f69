"""What the server has forgotten, lock by lock, entry by entry and count by count: nothing else is ever excused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .host import HostQueue
from .model_server import ModelServer

Snapshot = tuple[dict[str, tuple[str, int | None]], dict[str, dict[str, Any]], Any]


class Counts:
    """Stalled counts as they have to be: one for each dead token since the count began."""

    def __init__(self) -> None:
        self._counted: dict[str, set[str]] = {}
        self._before: dict[str, int] = {}

    def claimed(self, job_id: str, token: str) -> int:
        """Return what the count has to say once this dead token is claimed."""
        tokens = self._counted.setdefault(job_id, set())
        tokens.add(token)
        return self._before.get(job_id, 0) + len(tokens)

    def returned(self, job_id: str, token: str) -> None:
        self._counted.get(job_id, set()).discard(token)

    def gone(self, job_id: str) -> None:
        self._counted.pop(job_id, None)
        self._before.pop(job_id, None)

    def begin_again(self, job_id: str, found: str | None) -> None:
        """The server has forgotten a count, and says this from now on."""
        self.gone(job_id)
        if found is not None:
            count, token, _ = found.split(" ", 2)
            self._counted[job_id] = {token} if token else set()
            self._before[job_id] = int(count) - len(self._counted[job_id])


class Forgotten:
    """
    Compares the server before and after.

    Args:
        server: the server, as it is.
        host: where what nobody can bring back any more is settled.
        knows: tells whether a live worker still knows of a run, by its token.
        has_run: tells whether a live worker runs a delivery, or is about to, or still has to give it back.
        count: counts what happens.

    """

    def __init__(
        self,
        server: ModelServer,
        host: HostQueue,
        knows: Callable[[str], bool],
        has_run: Callable[[str], bool],
        count: Callable[[str], None],
    ) -> None:
        self.counts = Counts()
        self._server = server
        self._host = host
        self._knows = knows
        self._has_run = has_run
        self._count = count
        self._lock_ends: dict[str, int] = {}
        self._entries: dict[str, tuple[str, str]] = {}
        self._nobodys: dict[str, tuple[str, str]] = {}
        self._let_go: set[str] = set()
        self.lock_taken: set[str] = set()

    def lock_end(self, token: str) -> int:
        """Return until when a lock would have lived that the server forgot, or whose renewal it forgot; else 0."""
        return self._lock_ends.get(token, 0)

    def compare(self, before: Snapshot, now: int) -> None:
        """Take in what the server has forgotten since ``before``."""
        strings, hashes, _ = before
        for key, (token, end) in strings.items():
            if key.endswith(":lock") and end is not None and end > now:
                found, left_end = self._server.strings.get(key, ("", None))
                if found != token or (left_end or 0) < end:
                    self._lock_ends[token] = max(end, self.lock_end(token))
        for held, job_id, token in _fields(hashes, ":held"):
            if self._server.hget(held, job_id) != token:
                self._entries[token] = (held, job_id)
                if token in self._let_go or not self._knows(token):
                    self._nobodys[token] = (held, job_id)
        for held, job_id, token in _fields(self._server.hashes, ":held"):
            self.restored(token)
        counts = {(key, job_id): count for key, job_id, count in _fields(hashes, ":stalled-count")}
        left = {(key, job_id): count for key, job_id, count in _fields(self._server.hashes, ":stalled-count")}
        for key, job_id in counts.keys() | left.keys():
            if counts.get((key, job_id)) != left.get((key, job_id)):
                self.counts.begin_again(job_id, left.get((key, job_id)))
        self.settle_what_nobody_knows()

    def let_go(self, token: str) -> None:
        """The server was told that a run was interrupted: from here on its entry alone knows of it."""
        self._let_go.add(token)

    def taken(self, job_id: str, delivery: str | None) -> None:
        """The job has started (again): from here on it is that run's, and no longer excused."""
        if delivery is not None:
            self.lock_taken.add(delivery)
        self._nobodys = {token: where for token, where in self._nobodys.items() if where[1] != job_id}

    def known(self, token: str) -> None:
        """The reply that gave the lock has come after all: its worker can bring the job back."""
        self._nobodys.pop(token, None)

    def restored(self, token: str) -> None:
        """Its entry was written again: what becomes of the job from here on is no longer excused."""
        self._entries.pop(token, None)
        self._nobodys.pop(token, None)

    def nobody_knows(self, token: str) -> None:
        """The last worker that knew of a run is dead, or was told by the fence that its job is none of its business."""
        if token in self._entries:
            self._nobodys[token] = self._entries[token]

    def settle_what_nobody_knows(self) -> None:
        """Settle the jobs whose entry was forgotten, and which neither a worker nor another entry can bring back."""
        for token, (held, job_id) in list(self._nobodys.items()):
            entry = self._server.hget(held, job_id)
            names = [name for name, delivery in self._host.open.items() if delivery.job_id == job_id]
            names = [name for name in names if name in self.lock_taken and not self._host.is_waiting(name)]
            if entry is None and not any(self._has_run(name) for name in names):
                for name in names:
                    self._count("jobs nobody could bring back")
                    self._host.settle(name)
                del self._nobodys[token]


def _fields(hashes: dict[str, dict[str, Any]], ending: str) -> Iterator[tuple[str, str, Any]]:
    for key, fields in hashes.items():
        if key.endswith(ending):
            for job_id, value in fields.items():
                yield key, job_id, value
