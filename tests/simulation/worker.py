"""One simulated worker process: the package's real parts, put together as ``LockPlugin`` does, and a host's loop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import pluggy

from echomq_plugin.errors import LockHeldError, OwnershipUnknownError, StartUndecidedError
from echomq_plugin.events import JobsFoundDead, LocksLost, LostLock, Report
from echomq_plugin.job_locks import JobLocks
from echomq_plugin.keys import QueueKeys
from echomq_plugin.lock_manager import LockManager
from echomq_plugin.locks import Lock
from echomq_plugin.options import LockOptions
from echomq_plugin.recovery import Recovery
from echomq_plugin.scripts import Scripts
from echomq_plugin.stalled import StalledChecker
from echomq_plugin.sweep_scripts import SweepScripts
from echomq_plugin.tracking import TrackedLocks

from .history import History, Run
from .host import Delivery, End, HostQueue
from .network import SimConnections, Site
from .stand_ins import DirectCaller, HostPlugin, SimClock, SimHub
from .world import Machine, Signal, sleep

QUEUES = ("q0", "q1")
"""What every worker is attached to."""


class SimWorker:
    """A worker with ``concurrency`` jobs at a time."""

    def __init__(
        self,
        name: str,
        site: Site,
        host: HostQueue,
        history: History,
        options: LockOptions,
        *,
        concurrency: int,
        on_death: Callable[[], None],
    ) -> None:
        self.name = name
        self.on_death = on_death
        self.options = options
        self.host = host
        self.history = history
        self.site = site
        self.machine = Machine(site.world, name)
        self.starting: list[Delivery] = []
        self.ended: list[Run] = []
        self.releasing: set[str] = set()
        self.reaches_since: int | None = None
        self.stopping = False
        self._cancelled: set[str] = set()
        self._dead: deque[JobsFoundDead] = deque()
        self._found = Signal(site.world)
        clock = SimClock(site.world)
        self._known: set[str] = set()
        connections = SimConnections(site, self.machine, options.call_limit)
        self.connections = connections
        sweep = SweepScripts(connections)
        checker = StalledChecker(
            sweep,
            prefix=options.prefix,
            worker=lambda: name,
            stalled_interval=options.stalled_interval,
            now_ms=clock.now_ms,
            outbox=self._post,
            own_queues=lambda: QUEUES,
        )
        self.manager = LockManager(
            connections, "q0", options=options, clock=clock, outbox=self._post, companions=(checker.run,)
        )
        pm = pluggy.PluginManager("simulation")
        self.plugin = HostPlugin(host, history, site.dice, clumsy=site.dice.random() < 0.3)
        pm.register(self.plugin)
        self._recovery = Recovery(
            pm,
            sweep,
            options=options,
            now_ms=clock.now_ms,
            outbox=self._post,
            nobody_put_back=checker.leave_to_others,
        )

        def make_known(queue: str) -> None:
            if queue not in self._known:
                sweep.add_queue(options.prefix, queue)
                self._known.add(queue)

        self.jobs = JobLocks(
            self.manager,
            Scripts(connections),
            options=options,
            worker=lambda: name,
            boot=make_known,
            cancel=self._cancel,
        )
        history.workers.append(self)
        self.manager.start()
        state = self.manager._state()
        hub = state.hub
        assert isinstance(hub, SimHub)
        self.tracked: TrackedLocks = state.table.tracked
        self.table = state.table
        hub.run_on(self.machine)
        self.machine.spawn(self._recover)
        for _ in range(concurrency):
            self.machine.spawn(self._consume)

    # -- bounds the checker asks for ---------------------------------------------------------------------------------

    def note_reach(self, now: int) -> None:
        """Note since when this worker could reach the server all the while."""
        reaches = (
            not self.machine.paused and not self.connections.cut_off and self.site.weather.calm and self.site.healthy
        )
        self.reaches_since = (now if self.reaches_since is None else self.reaches_since) if reaches else None

    def knows_by(self, lost_at: int) -> float:
        """Return when this worker has to know that it lost a lock then: the promise, to the ms."""
        if self.reaches_since is None:
            return math.inf  # its local deadline ends its belief
        return max(lost_at, self.reaches_since) + self.options.renew_time + self.options.call_limit

    def gives_up_by(self, deadline: int) -> int:
        """Return when a lock has to be reported whose deadline was then: calls may be under way when it comes."""
        return max(deadline, self.machine.resumed_at) + 6 * self.options.call_limit

    def has_to_release(self, token: str) -> bool:
        """Tell whether a run that has ended here still waits for the answer to its release."""
        return token in self.releasing or any(waiting == token for _, _, waiting in self.table.releases)

    # -- reports -----------------------------------------------------------------------------------------------------

    def _post(self, report: Report) -> None:
        if not self.machine.alive:
            return
        if isinstance(report, LocksLost):
            for lost in report.lost:
                self.history.lost(self, report.queue, lost)
            self.jobs.cancel_jobs(report, DirectCaller())
        elif isinstance(report, JobsFoundDead):
            self._dead.append(report)
            self._found.send()

    def _cancel(self, lock: Lock, lost: LostLock) -> None:
        self._cancelled.add(lock.token)

    def _recover(self) -> None:
        while True:
            while self._dead:
                self._recovery.recover(self._dead.popleft(), DirectCaller())
            self._found.wait(None)

    # -- a host's loop -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        while not self.stopping:
            delivery = self.host.pop()
            if delivery is None:
                sleep(self.site.dice.randint(200, 900))
                continue
            self.starting.append(delivery)
            try:
                lock = self._start(delivery)
            finally:
                if self.machine.alive:
                    self.starting.remove(delivery)
            if lock is not None:
                self._run(delivery, lock)

    def _start(self, delivery: Delivery) -> Lock | None:
        try:
            return self.jobs.start(delivery.queue, delivery.job_id, delivery.name)
        except LockHeldError as held:
            self.history.count("denied")
            if held.same_delivery:
                self.history.count("dropped")
                self.history.note(self.name, "drops", delivery.name)
            else:
                self.host.push_later(delivery, held.retry_in_ms)
        except StartUndecidedError:
            self.history.count("undecided")
            self.host.push_later(delivery, 1_000)
        return None

    def _run(self, delivery: Delivery, lock: Lock) -> None:
        keys = QueueKeys(self.options.prefix, delivery.queue)
        run = Run(self, delivery, lock.token, keys.lock(delivery.job_id), keys.held)
        self.history.began(run)
        end = self.host.next_end(delivery)
        left = delivery.body_ms
        while left > 0:
            sleep(min(left, 500))
            left -= 500
            if self.stopping:
                end = "interrupted"
            if end == "interrupted" or (delivery.stoppable and lock.token in self._cancelled):
                break
        if end == "crash":
            self.site.world.after(0, self.die)
            sleep(60_000)
        self._finish(run, lock, end)

    def _finish(self, run: Run, lock: Lock, end: End) -> None:
        delivery = run.delivery
        if end != "interrupted" and not self._may_write(delivery, lock):
            end = "interrupted"
        if end in ("completed", "failed"):
            self.history.wrote_result(run)
        elif end in ("retry", "requeued"):
            # As hosts do: pushed before the first run lets go.
            name = f"{delivery.name}+"
            again = Delivery(name, delivery.queue, delivery.job_id, 1_000, (), delivery.confirms, delivery.stoppable)
            self.host.push(again)
            self.history.wrote_result(run)
        self.history.ended(run)
        assert end != "crash"
        self.ended.append(run)
        self.releasing.add(run.token)
        result = self.jobs.finish(lock, end)
        self.releasing.discard(run.token)
        self.history.note("ended", run, end, result)
        self.history.count(f"finish {result.value}")

    def _may_write(self, delivery: Delivery, lock: Lock) -> bool:
        if lock.token in self._cancelled:
            return False
        while delivery.confirms:
            try:
                return lock.confirm()
            except OwnershipUnknownError:
                sleep(1_000)
            if lock.token in self._cancelled:
                return False
        return True

    def die(self) -> None:
        """End without a word."""
        if self.machine.alive:
            self.history.note("crash of", self.name)
            self.on_death()
            self.machine.alive = False
            self.history.crashed(self)
            self.machine.kill()

    def close(self) -> None:
        """Free what the process keeps for a manager."""
        self.machine.alive = False
        self.machine.kill()
        self.manager.stop()
