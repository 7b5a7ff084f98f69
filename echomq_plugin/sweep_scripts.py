"""SweepScripts: the calls of the stalled checker and of recovery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echomq_plugin.connections import Client
from echomq_plugin.keys import QueueKeys, queues_key
from echomq_plugin.wire import MOST_IDS_A_CALL, Wire, chunks, text, texts

COUNT_KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a stalled count without an entry is kept, in ms."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A dead run's job that is ours to put back."""

    job_id: str
    token: str
    entry_data: bytes
    stalled_count: int


class SweepScripts(Wire):
    """The calls that find the jobs of dead workers, and that guard their recovery."""

    names = (
        "winCheck-1",
        "markLockless",
        "claimStalled",
        "keepClaims-1",
        "dropEntries-5",
        "returnClaims-2",
        "pruneCounts-2",
    )

    def add_queue(self, prefix: str, queue: str) -> None:
        """Make a queue known, so that every worker sweeps it."""
        self.connections.call("add a queue", lambda client: client.execute_command("SADD", queues_key(prefix), queue))

    def queues(self, prefix: str) -> list[str]:
        """Return all queues known under a prefix."""

        def ask(client: Client) -> list[str]:
            return sorted(text(name) for name in client.execute_command("SMEMBERS", queues_key(prefix)))

        return self.connections.call("list queues", ask)

    def win_check(self, keys: QueueKeys, worker: str, pause_ms: int, *, serves: bool) -> int:
        """
        Return 0 when the next pass over a queue is ours, else the ms until we may win it.

        Args:
            keys: the queue's keys.
            worker: this worker's name.
            pause_ms: the time between two passes, in ms.
            serves: whether this worker runs jobs of the queue; one that does not waits half as long again.

        """
        arguments = (worker, pause_ms, pause_ms // 2, "1" if serves else "0")
        return self.run("win a pass", "winCheck-1", (keys.held_check,), arguments, int)

    def held_ids(self, keys: QueueKeys, cursor: int) -> tuple[int, list[str]]:
        """Return the next cursor (0: the end) and some job ids that have entries."""
        return self.scan("list entries", keys.held, cursor)

    def counted_ids(self, keys: QueueKeys, cursor: int) -> tuple[int, list[str]]:
        """Return the next cursor (0: the end) and some job ids that have a stalled count."""
        return self.scan("list counts", keys.stalled_count, cursor)

    def mark_lockless(self, keys: QueueKeys, job_ids: Sequence[str]) -> list[tuple[str, str]]:
        """Mark entries without a lock; return (job id, token) of those already marked under the same token."""
        dead: list[tuple[str, str]] = []
        for chunk in chunks(job_ids, MOST_IDS_A_CALL):
            locks = tuple(keys.lock(job_id) for job_id in chunk)
            entries = (keys.held, keys.held_data, keys.held_seen)
            flat = self.run("look for dead runs", "markLockless", (*entries, *locks), tuple(chunk), texts)
            dead += zip(flat[::2], flat[1::2], strict=True)
        return dead

    def claim(self, keys: QueueKeys, claim_token: str, claim_ms: int, dead: Sequence[tuple[str, str]]) -> list[Claimed]:
        """Claim dead runs' jobs and move their stalled counts, once for each dead token."""
        tokens = dict(dead)
        locks = tuple(keys.lock(job_id) for job_id, _ in dead)
        arguments = (claim_token, claim_ms, COUNT_KEPT_MS, *(word for pair in dead for word in pair))
        flat = self.run(
            "claim stalled jobs",
            "claimStalled",
            (keys.held, keys.held_data, keys.held_claim, keys.stalled_count, *locks),
            arguments,
            list,
        )
        return [
            Claimed(text(job_id), tokens[text(job_id)], data, int(count))
            for job_id, data, count in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]

    def keep_claims(self, keys: QueueKeys, claim_token: str, claim_ms: int, job_ids: Sequence[str]) -> list[str]:
        """Make claims last ``claim_ms`` from now; return the ids whose claim is still ours."""
        return self.run("keep claims", "keepClaims-1", (keys.held_claim,), (claim_token, claim_ms, *job_ids), texts)

    def drop_entries(
        self, keys: QueueKeys, claim_token: str, dead: Sequence[tuple[str, str]], *, forget_count: bool
    ) -> int:
        """End a recovery: drop the entries that still bear the dead token and our claim."""
        return self.run(
            "drop entries",
            "dropEntries-5",
            (keys.held, keys.held_data, keys.held_claim, keys.held_seen, keys.stalled_count),
            (claim_token, "1" if forget_count else "0", *(word for pair in dead for word in pair)),
            int,
        )

    def return_claims(self, keys: QueueKeys, claim_token: str, dead: Sequence[tuple[str, str]]) -> int:
        """Give claims back unused; the counts are what they were."""
        arguments = (claim_token, *(word for pair in dead for word in pair))
        return self.run("return claims", "returnClaims-2", (keys.held_claim, keys.stalled_count), arguments, int)

    def prune_counts(self, keys: QueueKeys, job_ids: Sequence[str]) -> int:
        """Forget old stalled counts of jobs without an entry."""
        forgotten = 0
        for chunk in chunks(job_ids, MOST_IDS_A_CALL):
            forgotten += self.run(
                "prune counts", "pruneCounts-2", (keys.held, keys.stalled_count), (COUNT_KEPT_MS, *chunk), int
            )
        return forgotten
