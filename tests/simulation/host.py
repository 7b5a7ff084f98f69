"""A host queue that forgets nothing: what is pushed stays until a worker pops it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from .world import World

End = Literal["completed", "failed", "retry", "requeued", "crash", "interrupted"]


@dataclass(frozen=True)
class Delivery:
    """One delivery of a job, and how the run made of it goes."""

    name: str
    queue: str
    job_id: str
    body_ms: int
    ends: tuple[End, ...]
    confirms: bool
    stoppable: bool


class HostQueue:
    """
    Deliveries in order.

    ``open`` holds every delivery that somebody still owes a result for; it ends when the result is written, when the
    job's own retry takes over, when the job is given up, or when the worker dies before it took the lock.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: deque[Delivery] = deque()
        self.known: dict[str, Delivery] = {}
        self.runs_begun: dict[str, int] = {}
        self.open: dict[str, Delivery] = {}
        self.pushed_at: dict[str, int] = {}
        self._on_the_way: list[str] = []

    def push(self, delivery: Delivery) -> None:
        self.known[delivery.name] = delivery
        self.open[delivery.name] = delivery
        self.pushed_at[delivery.name] = self._world.now
        self._waiting.append(delivery)

    def push_again(self, name: str) -> None:
        self._waiting.append(self.known[name])

    def push_later(self, delivery: Delivery, pause_ms: int) -> None:
        """The host's own delay: durable, like the queue."""
        self._on_the_way.append(delivery.name)
        self._world.after(pause_ms, self._arrive, delivery)

    def _arrive(self, delivery: Delivery) -> None:
        self._on_the_way.remove(delivery.name)
        self._waiting.append(delivery)

    def pop(self) -> Delivery | None:
        return self._waiting.popleft() if self._waiting else None

    def is_waiting(self, name: str) -> bool:
        return name in self._on_the_way or any(delivery.name == name for delivery in self._waiting)

    def next_end(self, delivery: Delivery) -> End:
        """How the next run of a delivery ends: by its plan, and well once the plan is over."""
        begun = self.runs_begun.get(delivery.name, 0)
        self.runs_begun[delivery.name] = begun + 1
        return delivery.ends[begun] if begun < len(delivery.ends) else "completed"

    def settle(self, name: str) -> None:
        self.open.pop(name, None)

    def settle_job(self, job_id: str, begun_at: int) -> None:
        """A run of the job that began then has settled whatever was pushed before."""
        for name, delivery in list(self.open.items()):
            if delivery.job_id == job_id and self.pushed_at[name] <= begun_at:
                del self.open[name]
