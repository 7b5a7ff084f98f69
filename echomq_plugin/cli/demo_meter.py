"""Meter: what one worker of the demo measures, at the source and not where reports arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from echomq_plugin.clocks import SystemClock
from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError
from echomq_plugin.native import allocate_lock
from echomq_plugin.scripts import Batch, Scripts


@dataclass
class Figures:
    """
    The figures of one worker.

    Attributes:
        locks: jobs whose locks it keeps now.
        ticks: passes that found something due.
        renewal_calls: renewal scripts sent.
        renewals: locks renewed by them, each time counted.
        last_renewed: how many locks the last tick renewed.
        last_tick_ms: how long the last tick's call took, in ms.
        max_renewal_gap_ms: the longest time that a lock went from its start, or a renewal, to the next one, in ms.
        lost: locks reported lost, as ``job (reason)``.
        recovered: jobs put back.
        blocked_ms: for how long its hub was blocked on purpose, in ms.
        troubles: whatever else was reported.

    """

    locks: int = 0
    ticks: int = 0
    renewal_calls: int = 0
    renewals: int = 0
    last_renewed: int = 0
    last_tick_ms: int = 0
    max_renewal_gap_ms: int = 0
    lost: list[str] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    blocked_ms: int = 0
    troubles: list[str] = field(default_factory=list)


class Meter:
    """Keeps figures; every method may be called from any native thread, and does no I/O."""

    def __init__(self) -> None:
        self.figures = Figures()
        self.lock = allocate_lock()
        self._clock = SystemClock()
        self._renewed_at: dict[str, int] = {}

    def now_ms(self) -> int:
        """Return the time, in ms."""
        return self._clock.now_ms()

    def run_began(self, token: str) -> None:
        """A lock was taken."""
        with self.lock:
            self._renewed_at[token] = self.now_ms()

    def run_ended(self, token: str) -> None:
        """A lock is given back."""
        with self.lock:
            self._renewed_at.pop(token, None)

    def ticked(self, batches: Sequence[Batch], replies: Sequence[list[str] | RedisCallError], sent_at: int) -> None:
        """A tick's call was answered."""
        with self.lock:
            figures = self.figures
            figures.last_renewed = 0
            figures.last_tick_ms = self.now_ms() - sent_at
            for batch, reply in zip(batches, replies, strict=True):
                if isinstance(reply, RedisCallError):
                    continue
                failed = frozenset(reply)
                for job_id, token in zip(batch.job_ids, batch.tokens, strict=True):
                    if job_id not in failed:
                        figures.last_renewed += 1
                        self._renewed(token, sent_at)
            figures.renewals += figures.last_renewed

    def _renewed(self, token: str, sent_at: int) -> None:
        before = self._renewed_at.get(token)
        if before is not None:
            self.figures.max_renewal_gap_ms = max(self.figures.max_renewal_gap_ms, sent_at - before)
            self._renewed_at[token] = sent_at


class MeteredScripts(Scripts):
    """
    Scripts that count their renewal calls.

    Args:
        connections: where to.
        meter: keeps the figures.

    """

    def __init__(self, connections: Connections, meter: Meter) -> None:
        super().__init__(connections)
        self._meter = meter

    def extend_locks(self, batches: Sequence[Batch], lock_duration: int) -> Any:
        """See ``Scripts.extend_locks``. Runs in the renewal greenlet."""
        with self._meter.lock:
            self._meter.figures.ticks += 1
            self._meter.figures.renewal_calls += len(batches)
        sent_at = self._meter.now_ms()
        replies = super().extend_locks(batches, lock_duration)  # switches greenlets
        self._meter.ticked(batches, replies, sent_at)
        return replies
