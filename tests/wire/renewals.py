"""A renewal pass on a real table and a real server, with a time that the test sets."""

from __future__ import annotations

from collections.abc import Iterable

from echomq_plugin.connections import Connections
from echomq_plugin.events import LocksLost, LocksRenewed, Report
from echomq_plugin.failures import Failure
from echomq_plugin.keys import QueueKeys
from echomq_plugin.renewal import Renewal
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable
from echomq_plugin.tracking import TrackedLocks
from wire.servers import Node

DURATION = 30_000
TICK = 7_500


class Bench:
    """A table of locks that were taken at 0 and are due now."""

    def __init__(self, node: Node, *, batch_size: int = 1_000, connections: Connections | None = None) -> None:
        self.node = node
        self.now = 0
        self.reports: list[Report] = []
        self.table = LockTable(TrackedLocks(lock_duration=DURATION, threshold=TICK))
        self.scripts = Scripts(connections or node.connections())
        self.renewal = Renewal(
            self.table,
            self.scripts,
            prefix="emq",
            batch_size=batch_size,
            now_ms=lambda: self.now,
            outbox=self.reports.append,
        )

    def hold(self, job_ids: Iterable[str], queue: str = "mail", entry: bytes | None = None) -> None:
        """Take locks, on the server and in the table, with a life that a renewal will be seen to change."""
        keys = QueueKeys("emq", queue)
        pipeline = self.node.client.pipeline(transaction=False)
        for job_id in job_ids:
            pipeline.set(keys.lock(job_id), f"token of {job_id}", px=2 * DURATION)
            self.table.tracked.track(queue, job_id, f"token of {job_id}", now=0, entry=entry)
        pipeline.execute()

    def tick(self) -> list[Failure]:
        """Let a tick's time pass, and make the pass."""
        self.now += TICK + 1
        return self.renewal.run()

    @property
    def renewed(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(report.queue, report.job_ids) for report in self.reports if isinstance(report, LocksRenewed)]

    @property
    def lost(self) -> list[tuple[str, str, str]]:
        return [
            (report.queue, lost.job_id, lost.reason)
            for report in self.reports
            if isinstance(report, LocksLost)
            for lost in report.lost
        ]
