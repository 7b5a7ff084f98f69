"""
The checker: after every step of the simulation it asserts the promise.

A run *believes* while its worker tracks its lock and the lock's local deadline lies ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from echomq_plugin.entries import EntryData
from echomq_plugin.events import LostLock

from .forgetting import Forgotten
from .host import Delivery, HostQueue
from .model_server import ModelServer
from .world import World

if TYPE_CHECKING:
    from .worker import SimWorker


class BrokenPromiseError(AssertionError):
    """The history breaks a rule."""


class Run:
    """One run of a job, from the reply that gave the lock until the host hands it back."""

    def __init__(self, worker: SimWorker, delivery: Delivery, token: str, lock_key: str, held_key: str) -> None:
        self.worker = worker
        self.delivery = delivery
        self.token = token
        self.lock_key = lock_key
        self.held_key = held_key
        self.began_at = worker.machine.world.now
        self.reported: str | None = None
        self.not_ours_since: int | None = None
        self.trusted_until = 0

    def __repr__(self) -> str:
        return f"run of {self.delivery.name} on {self.worker.name} ({self.token})"

    def tracked(self) -> bool:
        return self.worker.tracked.holds(self.delivery.queue, self.delivery.job_id, self.token)

    def deadline(self) -> int:
        """Until when its worker trusts the lock; 0 when it is not tracked."""
        lock = self.worker.tracked.get(self.delivery.queue, self.delivery.job_id)
        return lock.renewed_at + self.worker.options.lock_duration if lock is not None and self.tracked() else 0

    def believes(self, now: int) -> bool:
        machine = self.worker.machine
        tracked = self.worker.tracked
        return machine.alive and tracked.believes(self.delivery.queue, self.delivery.job_id, self.token, now)


class History:
    """What happened, and what must not."""

    def __init__(self, world: World, server: ModelServer, host: HostQueue, *, trace: bool = False) -> None:
        self.world = world
        self.server = server
        self.host = host
        self.live: list[Run] = []
        self.workers: list[SimWorker] = []
        self.forgotten = Forgotten(server, host, self._knows, self._has_run, self.count)
        self.reports: dict[str, str] = {}
        self.overlapping: set[str] = set()
        self.facts: dict[str, int] = {}
        self._traced = trace
        self._first_break: BrokenPromiseError | None = None
        server.watch = self._watch

    # -- what happens ------------------------------------------------------------------------------------------------

    def note(self, *words: object) -> None:
        if self._traced:
            print(f"{self.world.now - 1_000_000:>8} ms ", *words)  # what a replay is for

    def count(self, fact: str) -> None:
        self.facts[fact] = self.facts.get(fact, 0) + 1

    def began(self, run: Run) -> None:
        self.note("begins", run)
        self.count("runs")
        self.live.append(run)
        self.forgotten.known(run.token)

    def ended(self, run: Run) -> None:
        if run in self.live:
            self.live.remove(run)

    def wrote_result(self, run: Run) -> None:
        self.note("result of", run)
        self.host.settle_job(run.delivery.job_id, run.began_at)

    def lost(self, worker: SimWorker, queue: str, lost: LostLock) -> None:
        self.note("lost", worker.name, lost)
        self.count(f"lost {lost.reason}")
        if lost.token in self.reports:
            self._broken(f"{lost} was reported before, as {self.reports[lost.token]}")
        self.reports[lost.token] = lost.reason
        run = next((run for run in self.live if run.token == lost.token and run.worker is worker), None)
        if run is None:
            self._broken(f"{lost} is reported to {worker.name}, which runs no such job")
            return
        run.reported = lost.reason
        if lost.reason == "expired" and self.world.now < run.trusted_until:
            self._broken(f"an invented loss: {lost}, {run.trusted_until - self.world.now} ms before its deadline")
        if lost.reason != "expired" and self.server.get(run.lock_key) == run.token:
            self._broken(f"an invented loss: {lost}, and the server still has it")

    def crashed(self, worker: SimWorker) -> None:
        for run in [*self.live, *worker.ended]:
            if run.worker is worker and (run in self.live or worker.has_to_release(run.token)):
                self.forgotten.nobody_knows(run.token)
        self.live = [run for run in self.live if run.worker is not worker]
        self.forgotten.settle_what_nobody_knows()
        for delivery in worker.starting:
            data = self.server.hget(f"emq:{delivery.queue}:held-data", delivery.job_id)
            entry = EntryData.unpack(data)
            ours = entry.delivery == delivery.name and entry.worker == worker.name
            if not ours and not self.host.is_waiting(delivery.name):
                # It died between the host's pop and our lock: that window is the host's (DESIGN §8.7).
                self.host.settle(delivery.name)

    def forgets(self, what: Callable[[], object]) -> None:
        """Let the server forget, and note what."""
        before = self.server.snapshot()
        what()
        self.forgotten.compare(before, self.world.now)

    def _knows(self, token: str) -> bool:
        return any(run.token == token for run in self._known_runs())

    def _known_runs(self) -> Iterator[Run]:
        """Those that a live worker makes, or whose release it still has to bring about."""
        yield from self.live
        for worker in self.workers:
            if worker.machine.alive:
                yield from (run for run in worker.ended if worker.has_to_release(run.token))

    def _has_run(self, name: str) -> bool:
        starting = (each.name for worker in self.workers if worker.machine.alive for each in worker.starting)
        return name in starting or any(run.delivery.name == name for run in self._known_runs())

    def _watch(self, event: str, job_id: str, *details: Any) -> None:
        if event == "taken":
            self.forgotten.taken(job_id, EntryData.unpack(details[1]).delivery)
        elif event == "let go":
            self.forgotten.let_go(details[0])
        elif event == "restored":
            self.forgotten.restored(details[0])
        elif event == "not restored":
            # docs/guarantees.md: the counter has grown past the start again, and looks like one that remembers it.
            self.forgotten.nobody_knows(details[0])
        elif event == "count gone":
            self.forgotten.counts.gone(job_id)
        elif event == "claimed":
            token, count = details
            wanted = self.forgotten.counts.claimed(job_id, token)
            if count != wanted:
                self._broken(f"job {job_id} stalled {wanted} times, and its count says {count}")
        elif event == "returned":
            self.forgotten.counts.returned(job_id, details[0])

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the promise, now."""
        if self._first_break is not None:
            raise self._first_break
        now = self.world.now
        for worker in self.workers:
            worker.note_reach(now)
        self.forgotten.settle_what_nobody_knows()
        believers: dict[str, list[Run]] = {}
        for run in self.live:
            self._check_run(run, now)
            if run.believes(now):
                believers.setdefault(run.delivery.job_id, []).append(run)
        overlapping = {job_id for job_id, runs in believers.items() if len(runs) > 1}
        for job_id in overlapping:
            self._check_overlap(job_id, believers[job_id], now)
        self.overlapping = overlapping

    def _check_overlap(self, job_id: str, runs: list[Run], now: int) -> None:
        if job_id not in self.overlapping:
            self.count("overlaps after forgetting")
        for run in runs:
            # One at the most has the server's lock. Each of the others was forgotten, or `_check_run` says so.
            since = run.not_ours_since
            if since is not None and now > run.worker.knows_by(since):
                self._broken(f"two workers have believed to hold {job_id} for too long, since {since}: {runs}")

    def _check_run(self, run: Run, now: int) -> None:
        worker = run.worker
        if not worker.machine.alive:
            return
        ours = self.server.get(run.lock_key) == run.token
        has_until = now + self.server.left_ms(run.lock_key) if ours else 0
        if ours:
            run.not_ours_since = None
        elif run.not_ours_since is None:
            run.not_ours_since = now
        if run.believes(now) and run.deadline() > max(has_until, self.forgotten.lock_end(run.token)):
            self._broken(f"the belief outlasts the lock, which the server did not forget: {run}")
        run.trusted_until = max(run.trusted_until, run.deadline())
        if run.reported is not None or worker.machine.paused:
            return
        if not run.tracked():
            self._broken(f"a held lock was dropped without a word: {run}")
        if run.not_ours_since is not None and now > min(
            worker.knows_by(run.not_ours_since), worker.gives_up_by(run.deadline())
        ):
            self._broken(f"lost for {now - run.not_ours_since} ms, and not reported: {run}")

    def _broken(self, what: str) -> None:
        # Kept too: raised inside the package's own code it may be caught there.
        self._first_break = self._first_break or BrokenPromiseError(f"{self.world.now - 1_000_000} ms: {what}")
        raise self._first_break
