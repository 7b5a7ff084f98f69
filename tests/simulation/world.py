"""The simulated clock and scheduler: one strand runs at a time, and which one is next depends on the seed alone."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class World:
    """A clock in ms and a heap of what happens next. Events of one moment happen in the order they were planned."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.scheduler: greenlet = getcurrent()
        self._heap: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._planned = 0

    def now_ms(self) -> int:
        return self.now

    def after(self, ms: int, function: Callable[..., object], *arguments: Any) -> None:
        """Plan a call in the scheduler, ``ms`` from now."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + max(0, ms), self._planned, function, arguments))

    def step(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        if not self._heap:
            return False
        self.now, _, function, arguments = heapq.heappop(self._heap)
        function(*arguments)
        return True


class Machine:
    """A process: its strands run, stand still together, or die together."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.resumed_at = 0
        self._missed: list[tuple[Strand, int, Any]] = []
        self._strands: list[Strand] = []

    def spawn(self, body: Callable[[], object]) -> Strand:
        strand = Strand(self, body)
        self._strands.append(strand)
        self.world.after(0, strand.deliver, strand.ticket, None)
        return strand

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.resumed_at = self.world.now
            missed, self._missed = self._missed, []
            for strand, ticket, value in missed:
                self.world.after(0, strand.deliver, ticket, value)

    def keep_for_later(self, strand: Strand, ticket: int, value: Any) -> None:
        self._missed.append((strand, ticket, value))

    def kill(self) -> None:
        """End all strands. What runs in them while they unwind can neither wait nor call."""
        self.alive = False
        for strand in self._strands:
            strand.kill()


class Strand:
    """One greenlet of a machine. It runs until it waits; only the scheduler switches to it."""

    def __init__(self, machine: Machine, body: Callable[[], object]) -> None:
        self.machine = machine
        self.ticket = 0
        self._greenlet = greenlet(self._run, parent=machine.world.scheduler)
        self._body = body

    def _run(self, _: Any) -> None:
        self._body()

    def wait(self) -> Any:
        """Stand still until the present ticket is delivered. Called from inside the strand."""
        if not self.machine.alive:
            raise GreenletExit
        return self.machine.world.scheduler.switch()

    def next_ticket(self) -> int:
        self.ticket += 1
        return self.ticket

    def deliver(self, ticket: int, value: Any) -> None:
        """Let the strand go on if it still waits for this ticket. Called from the scheduler."""
        if ticket != self.ticket or not self.machine.alive or self._greenlet.dead:
            return
        if self.machine.paused:
            self.machine.keep_for_later(self, ticket, value)
            return
        self.ticket += 1
        STRANDS.append(self)
        try:
            self._greenlet.switch(value)
        finally:
            STRANDS.pop()

    def kill(self) -> None:
        self.ticket += 1
        if getcurrent() is self._greenlet or self._greenlet.dead:
            return
        if not self._greenlet:
            return  # it never began
        STRANDS.append(self)
        try:
            self._greenlet.throw(GreenletExit)
        finally:
            STRANDS.pop()


STRANDS: list[Strand] = []
"""The strand that runs is the last one."""


def current_strand() -> Strand:
    return STRANDS[-1]


def sleep(ms: int) -> None:
    """Let simulated time pass in the strand that runs."""
    strand = current_strand()
    ticket = strand.next_ticket()
    strand.machine.world.after(ms, strand.deliver, ticket, None)
    strand.wait()


class Signal:
    """Stands in for ``hubs.Signal``: wakes the one strand that waits on it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._set = False
        self._waiting: tuple[Strand, int] | None = None

    def send(self) -> None:
        self._set = True
        if self._waiting is not None:
            strand, ticket = self._waiting
            self._world.after(0, strand.deliver, ticket, None)

    def wait(self, timeout_ms: int | None) -> None:
        if not self._set and (timeout_ms is None or timeout_ms > 0):
            strand = current_strand()
            ticket = strand.next_ticket()
            self._waiting = (strand, ticket)
            if timeout_ms is not None:
                self._world.after(timeout_ms, strand.deliver, ticket, None)
            try:
                strand.wait()
            finally:
                self._waiting = None
        self._set = False

    def close(self) -> None:
        pass
