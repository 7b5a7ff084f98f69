"""Watch: what the parent of the demo sees in Redis."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from echomq_plugin.cli.demo_meter import Figures
from echomq_plugin.cli.demo_plan import QUEUE, DemoPlan
from echomq_plugin.cli.demo_runs import RunBook
from echomq_plugin.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class Sight:
    """
    One look.

    Attributes:
        figures: what each worker has published last, by pid.
        lowest_ttl_ms: the shortest life that a lock of a live worker has left, in ms; None without locks.
        waiting: items in the list.
        taken: items that workers have taken.
        completed: jobs of which a run has completed.

    """

    figures: dict[int, Figures]
    lowest_ttl_ms: int | None
    waiting: int
    taken: int
    completed: int


class Watch:
    """
    Looks at the demo.

    Args:
        plan: its keys.
        client: a ``redis.Redis`` with ``decode_responses``.

    """

    def __init__(self, plan: DemoPlan, client: Any) -> None:
        self.plan = plan
        self.book = RunBook()
        self._client = client
        self._keys = QueueKeys(plan.prefix, QUEUE)

    def look(self, live: Collection[int]) -> Sight:
        """Look once; ``live`` are the pids of the workers whose locks should live."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.lrange(self.plan.runs_key, self.book.read, -1)
        pipeline.hgetall(self.plan.figures_key)
        pipeline.llen(self.plan.list_key)
        pipeline.llen(f"{self.plan.list_key}:processing")
        notes, figures, waiting, taken = pipeline.execute()
        self.book.add(notes)
        return Sight(
            {int(pid): Figures(**json.loads(text)) for pid, text in figures.items()},
            self._lowest_ttl(live),
            waiting,
            taken,
            len(self.book.completed()),
        )

    def server_time(self) -> int:
        """Return the server's clock, in µs."""
        seconds, micros = self._client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def delete_lock(self, job_id: str) -> None:
        """Delete a lock by hand."""
        self._client.delete(self._keys.lock(job_id))

    def _lowest_ttl(self, live: Collection[int]) -> int | None:
        jobs = [run.job_id for pid in live for run in self.book.running(pid)]
        pipeline = self._client.pipeline(transaction=False)
        for job_id in jobs:
            pipeline.pttl(self._keys.lock(job_id))
        return min((ttl for ttl in pipeline.execute() if ttl >= 0), default=None)
