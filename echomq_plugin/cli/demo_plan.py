"""DemoPlan: what parent and workers of the demo have agreed on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from echomq_plugin.options import LockOptions

QUEUE: Final = "jobs"

# Of ten jobs; more than half run for longer than a lock lives.
_SECONDS: Final = (2, 8, 1, 5, 8, 1, 4, 8, 1, 4)


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """
    The plan of one demo.

    Attributes:
        url: the server.
        prefix: what every key of this demo begins with.
        parent: the process that started it: workers end with it.
        jobs: how many jobs.
        greenlets: how many run at once in each worker.
        lock_duration: in ms.
        stalled_interval: in ms. Passes come at half of it, and that is later than any tick that could notice a loss.
        block_ms: how long the hub is blocked, in ms: longer than a lock lives.
        limit_s: when the demo gives up, in seconds.

    """

    url: str
    prefix: str
    parent: int
    jobs: int = 400
    greenlets: int = 100
    lock_duration: int = 3_000
    stalled_interval: int = 4_000
    block_ms: int = 4_500
    limit_s: float = 55.0

    @property
    def options(self) -> LockOptions:
        """What the workers' plugins are attached with."""
        return LockOptions(
            lock_duration=self.lock_duration,
            stalled_interval=self.stalled_interval,
            # Ticks that come often leave a call much of the lock's life: the machine may be slow.
            lock_renew_time=self.lock_duration // 3,
            call_limit_ms=self.lock_duration // 3,
            max_stalled_count=5,
            prefix=self.prefix,
        )

    @property
    def list_key(self) -> str:
        """The list of jobs."""
        return f"{self.prefix}:list"

    @property
    def runs_key(self) -> str:
        """The list of what runs have written: when they began, and when and how they ended."""
        return f"{self.prefix}:runs"

    @property
    def figures_key(self) -> str:
        """The hash of what workers measure."""
        return f"{self.prefix}:figures"

    def items(self) -> list[str]:
        """Return the jobs as items of the list."""
        return [
            json.dumps({"id": f"job-{number:03}", "seconds": _SECONDS[number % len(_SECONDS)]})
            for number in range(self.jobs)
        ]

    def to_text(self) -> str:
        """Return the plan as an argument for a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> DemoPlan:
        """Read a worker's argument."""
        return cls(**json.loads(text))
