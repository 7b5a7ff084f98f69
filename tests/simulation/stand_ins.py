"""What stands in a simulated worker for the real thing: tokens, hub, clock, caller, and the host's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

import pluggy

from echomq_plugin import hook_calls, job_locks, process_state, recovery
from echomq_plugin.events import StalledJob
from echomq_plugin.hubs import Task

from .history import History
from .host import HostQueue
from .world import Machine, Signal, World, sleep

hookimpl = pluggy.HookimplMarker("simulation")


class Tokens:
    """Stands in for ``uuid``: the same tokens for the same seed."""

    def __init__(self) -> None:
        self._made = 0

    def uuid4(self) -> TokenText:
        self._made += 1
        return TokenText(f"t{self._made}")


class TokenText(str):
    @property
    def hex(self) -> str:
        return str(self)


class SimHub:
    """Stands in for ``CallersHub``: runs a manager's tasks as strands of its machine."""

    def __init__(self, tasks: list[Task], _: Callable[[], None]) -> None:
        self.tasks = tasks

    def start(self) -> None:
        pass

    def run_on(self, machine: Machine) -> None:
        for task in self.tasks:
            task._clock_wait = None
            task._signal = Signal(machine.world)  # type: ignore[assignment]  # same calls as the real one
            machine.spawn(task._run)

    def stop(self) -> bool:
        return True

    def stop_at_exit(self) -> None:
        pass


class SimClock:
    """The clock of one worker. Its strands wait by the world's own means, so its ``wait`` has nothing to do."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now

    def wait(self, ms: int) -> None:
        raise NotImplementedError


class DirectCaller:
    """Calls hooks in the strand of the recovery."""

    def call(self, function: Callable[[], Any], limit_ms: int) -> Any:
        return function()


class HostPlugin:
    """The host's side of the hook chain: puts jobs back."""

    def __init__(self, host: HostQueue, history: History, dice: Random, *, clumsy: bool) -> None:
        self._host = host
        self._history = history
        self._dice = dice
        self.clumsy = clumsy

    @hookimpl
    def echomq_job_stalled(self, job: StalledJob) -> bool | None:
        if self.clumsy:
            throw = self._dice.random()
            if throw < 0.1:
                raise OSError("the host's own trouble")
            if throw < 0.2:
                return None
            sleep(self._dice.randint(0, 4_900))
        self._history.note("put back", job)
        self._history.count("put back")
        assert job.delivery is not None
        self._host.push_again(job.delivery)
        return True

    @hookimpl
    def echomq_job_abandoned(self, job: StalledJob) -> None:
        self._history.note("given up", job)
        self._history.count("given up")
        assert job.delivery is not None
        self._host.settle_job(job.job_id, self._host.pushed_at[job.delivery])


@contextmanager
def deterministic() -> Iterator[None]:
    """Put the simulated hub and tokens in the place of the real ones."""
    tokens = Tokens()
    with (
        mock.patch.object(process_state, "CallersHub", SimHub),
        mock.patch.object(job_locks, "uuid", tokens),
        mock.patch.object(recovery, "uuid", tokens),
        mock.patch.object(hook_calls, "log_hook_failure", return_value=None),
    ):
        yield
