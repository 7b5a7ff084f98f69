"""One seed, one history: jobs, workers and faults are drawn from the seed, then time runs until all is settled."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import Random

from echomq_plugin.options import LockOptions

from .history import BrokenPromiseError, History
from .host import Delivery, End, HostQueue
from .model_server import ModelServer
from .network import CALM, Site, Weather, loading, out_of_memory, read_only
from .stand_ins import deterministic
from .worker import SimWorker
from .world import World

ENDS: tuple[End, ...] = ("completed", "completed", "completed", "failed", "retry", "requeued", "crash", "interrupted")
TROUBLE_MS = 150_000
QUIET_MS = 1_500_000
PATIENT = LockOptions(lock_duration=30_000, stalled_interval=30_000, max_stalled_count=1_000)
HASTY = LockOptions(lock_duration=9_000, lock_renew_time=3_000, stalled_interval=6_000, max_stalled_count=2)


class Simulation:
    """
    Everything of one seed.

    Args:
        seed: what all is drawn from.
        trace: tell what happens.
        doubles: the server forgets often, and whatever it forgot is then delivered once more, often while a worker
            cannot be told: so that many runs believe at once.

    """

    def __init__(self, seed: int, *, trace: bool = False, doubles: bool = False) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.world = World()
        self.server = ModelServer(self.world.now_ms)
        self.site = Site(self.world, self.server, self.dice)
        self.host = HostQueue(self.world)
        self.history = History(self.world, self.server, self.host, trace=trace)
        self.options = self.dice.choice((PATIENT, PATIENT, HASTY))
        self.workers: list[SimWorker] = []
        self._made = 0
        self.forgetful = self.dice.random() < 0.4 or doubles
        self.doubles = doubles
        self.trouble = True

    def run(self) -> History:
        """
        Run the whole history.

        Raises:
            BrokenPromiseError: a rule does not hold.

        """
        before = random.getstate()
        random.seed(self.seed)
        try:
            # As on a server that has been up for a while.
            self.server.strings |= {f"emq:q{number}:fence": ("1000", None) for number in (0, 1)}
            with deterministic():
                try:
                    self._run()
                finally:
                    for worker in self.workers:
                        worker.close()
        finally:
            random.setstate(before)
        return self.history

    def _run(self) -> None:
        for _ in range(self.dice.randint(2, 3)):
            self._add_worker()
        for number in range(self.dice.randint(4, 8)):
            self.world.after(self.dice.randint(0, 60_000), self._push, number)
        for _ in range(self.dice.randint(2, 12)):
            self.world.after(self.dice.randint(1_000, TROUBLE_MS), self._fault)
        self.world.after(TROUBLE_MS + 1_000, self._calm_down)
        until = self.world.now + TROUBLE_MS + QUIET_MS
        history, host = self.history, self.host
        while self.world.step():
            history.check()
            if not self.trouble and not host.open and not history.live:
                return
            if self.world.now > until:
                raise BrokenPromiseError(f"jobs were lost: {list(host.open.values())}")

    def _push(self, number: int) -> None:
        dice = self.dice
        ends = tuple(dice.choice(ENDS) for _ in range(dice.choice((0, 1, 1, 2, 3))))
        delivery = Delivery(
            f"d{number}",
            f"q{number % 2}",
            f"j{number}",
            dice.choice((200, 3_000, 12_000, 40_000)),
            ends,
            confirms=dice.random() < 0.5,
            stoppable=dice.random() < 0.7,
        )
        self.history.note("pushed", delivery)
        self.host.push(delivery)
        if dice.random() < 0.5:
            # The host delivers the very same delivery again, perhaps while it runs.
            self.world.after(dice.randint(100, 60_000), self.host.push_again, delivery.name)

    def _add_worker(self) -> None:
        self._made += 1
        self.workers.append(
            SimWorker(
                f"w{self._made}",
                self.site,
                self.host,
                self.history,
                self.options,
                concurrency=self.dice.randint(1, 3),
                on_death=self._replace_later,
            )
        )

    # -- faults ------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        faults = [self._storm, self._storm, self._refuse, self._pause_server, self._restart, self._flush_scripts]
        faults += [self._pause_worker, self._pause_worker, self._crash_worker, self._shut_down, self._cut_off]
        if self.forgetful:
            faults += [self._restart_empty, self._failover, self._evict] * (4 if self.doubles else 1)
        fault = self.dice.choice(faults)
        self.history.count(fault.__name__.strip("_").replace("_", " "))
        self.history.note("fault:", fault.__name__)
        fault()

    def _calm_down(self) -> None:
        self.history.note("calm from here on")
        self.trouble = False
        self.site.weather = CALM
        self.site.refusal = None
        self.site.down = False
        self.site.resume()
        for worker in self.workers:
            worker.machine.resume()
            worker.plugin.clumsy = False
            worker.connections.cut_off = False
        if not any(worker.machine.alive and not worker.stopping for worker in self.workers):
            self._add_worker()

    def _length(self) -> int:
        return self.dice.choice((100, 1_000, 3_000, 8_000, 20_000, 45_000, 45_000))

    def _storm(self) -> None:
        dice = self.dice
        self.site.weather = Weather(
            lost_request=dice.choice((0, 100, 500)),
            lost_reply=dice.choice((0, 100, 400)),
            reset=dice.choice((0, 100)),
            delayed=dice.choice((0, 200)),
            most_delay_ms=dice.choice((500, 5_000, 60_000)),
        )
        self.world.after(self._length(), self._clear_up)

    def _clear_up(self) -> None:
        self.site.weather = CALM

    def _refuse(self) -> None:
        self.site.refusal = self.dice.choice((read_only, loading, out_of_memory))
        self.world.after(self._length(), self._serve)

    def _serve(self) -> None:
        self.site.refusal = None

    def _pause_server(self) -> None:
        self.site.paused = True
        self.world.after(self._length(), self.site.resume)

    def _restart(self) -> None:
        self.site.stop()
        self.server.loaded = set()
        self.world.after(self._length(), self._up)

    def _up(self) -> None:
        self.site.down = False

    def _flush_scripts(self) -> None:
        self.server.loaded = set()

    def _restart_empty(self) -> None:
        self._restart()
        self._forget(lambda: self.server.load(None))

    def _failover(self) -> None:
        snapshot = self.server.snapshot()
        self.world.after(self.dice.randint(1, 3_000), self._lose_master, snapshot)

    def _lose_master(self, snapshot: tuple[object, object, object]) -> None:
        self.site.stop()
        self._forget(lambda: self.server.load(snapshot))
        self.world.after(self._length(), self._up)

    def _evict(self) -> None:
        keys = [key for key, (_, end) in self.server.strings.items() if end is not None]
        if keys:
            key = self.dice.choice(keys)
            self._forget(lambda: self.server.delete(key))

    def _forget(self, what: Callable[[], object]) -> None:
        self.history.forgets(what)
        if self.doubles:
            for name in list(self.host.open):
                self.world.after(self.dice.randint(1, 9_000), self.host.push_again, name)
            self.dice.choice((self._cut_off, self._pause_worker, self._flush_scripts))()

    def _somebody(self) -> SimWorker | None:
        alive = [worker for worker in self.workers if worker.machine.alive]
        return self.dice.choice(alive) if alive else None

    def _pause_worker(self) -> None:
        worker = self._somebody()
        if worker is not None:
            worker.machine.pause()
            self.world.after(self._length(), worker.machine.resume)

    def _cut_off(self) -> None:
        worker = self._somebody()
        if worker is not None:
            worker.connections.cut_off = True
            self.world.after(self._length(), self._join_again, worker)

    def _join_again(self, worker: SimWorker) -> None:
        worker.connections.cut_off = False

    def _crash_worker(self) -> None:
        worker = self._somebody()
        if worker is not None:
            worker.die()

    def _shut_down(self) -> None:
        worker = self._somebody()
        if worker is not None:
            worker.stopping = True
            self._replace_later()

    def _replace_later(self) -> None:
        self.world.after(self._length(), self._add_worker)
