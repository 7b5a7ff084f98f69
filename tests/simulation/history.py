"""
The checker: after every step of the simulation it asserts the promise.

A run *believes* while its worker tracks its lock and the lock's local deadline lies ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from echomq_plugin.entries import EntryData
from echomq_plugin.events import LostLock

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
        self.deadline_passed = False
        self.not_ours_since: int | None = None

    def __repr__(self) -> str:
        return f"run of {self.delivery.name} on {self.worker.name} ({self.token})"

    def tracked(self) -> bool:
        return self.worker.tracked.holds(self.delivery.queue, self.delivery.job_id, self.token)

    def believes_for_ms(self, now: int) -> int:
        lock = self.worker.tracked.get(self.delivery.queue, self.delivery.job_id)
        return 0 if lock is None else lock.renewed_at + self.worker.options.lock_duration - now

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
        self.forgot_at: int | None = None
        self.entries_forgotten = 0
        self.expired: list[Run] = []
        self.lock_taken: set[str] = set()
        self.reports: dict[str, str] = {}
        self.overlap_since: dict[str, int] = {}
        self.dead_tokens: dict[str, set[str]] = {}
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
        run.deadline_passed = lost.reason == "expired" or lost.held_for_ms >= worker.options.lock_duration
        if run.deadline_passed:
            self.left_to_the_fence(run)
        if lost.reason != "expired" and self.server.get(run.lock_key) == run.token:
            self._broken(f"an invented loss: {lost}, and the server still has it")

    def crashed(self, worker: SimWorker) -> None:
        for run in [run for run in self.live if run.worker is worker]:
            self.live.remove(run)
            if self.forgot_at is not None and self.server.hget(run.held_key, run.delivery.job_id) is None:
                # The server forgot the entry and the one worker that knew of it is dead too.
                self.host.settle(run.delivery.name)
        for run in worker.unanswered:
            waits = any(token == run.token for _, _, token in worker.table.releases)
            if self.forgot_at is not None and waits and self._entry(run.delivery) is None:
                self.host.settle(run.delivery.name)
        for delivery in worker.starting:
            data = self.server.hget(f"emq:{delivery.queue}:held-data", delivery.job_id)
            entry = EntryData.unpack(data)
            ours = entry.delivery == delivery.name and entry.worker == worker.name
            if not ours and not self.host.is_waiting(delivery.name):
                # It died between the host's pop and our lock: that window is the host's (DESIGN §8.7).
                self.host.settle(delivery.name)

    def forgot(self, *, entries: bool, at_once: bool = False) -> None:
        """The server came back with less than it knew; ``at_once``: with nothing at all."""
        self.forgot_at = self.world.now
        self.dead_tokens.clear()
        if entries:
            # A lock that ran out unseen is told from one that the server forgot by the fence counter alone. It
            # cannot tell any more once it has started again from nothing and from a few starts ago.
            self.entries_forgotten += 1 if at_once else 2
        self._excuse_expired()
        known = {run.delivery.name for run in self.live}
        for delivery in list(self.host.open.values()):
            entry = self._entry(delivery)
            somewhere = self.host.is_waiting(delivery.name)
            if delivery.name in self.lock_taken and not somewhere and delivery.name not in known and entry is None:
                self.host.settle(delivery.name)

    def left_to_the_fence(self, run: Run) -> None:
        """Nobody believes in this run any more: should its entry be gone, the fence says whether it was forgotten."""
        self.expired.append(run)
        self._excuse_expired()

    def _excuse_expired(self) -> None:
        for run in self.expired if self.entries_forgotten > 1 else ():
            if self._entry(run.delivery) is None:
                self.host.settle(run.delivery.name)

    def _entry(self, delivery: Delivery) -> Any:
        return self.server.hget(f"emq:{delivery.queue}:held", delivery.job_id)

    def _watch(self, event: str, job_id: str, *details: Any) -> None:
        if event == "taken":
            token, data = details
            name = EntryData.unpack(data).delivery
            if name is not None:
                self.lock_taken.add(name)
        elif event == "count gone":
            self.dead_tokens.pop(job_id, None)
        elif event == "claimed":
            token, count = details
            tokens = self.dead_tokens.setdefault(job_id, set())
            tokens.add(token)
            if self.forgot_at is None and count != len(tokens):
                self._broken(f"job {job_id} stalled {len(tokens)} times, and its count says {count}")
        elif event == "returned":
            self.dead_tokens.get(job_id, set()).discard(details[0])

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the promise, now."""
        if self._first_break is not None:
            raise self._first_break
        now = self.world.now
        believers: dict[str, list[Run]] = {}
        for run in self.live:
            self._check_run(run, now)
            if run.believes(now):
                believers.setdefault(run.delivery.job_id, []).append(run)
        for job_id in list(self.overlap_since):
            if len(believers.get(job_id, ())) < 2:
                del self.overlap_since[job_id]
        for job_id, runs in believers.items():
            if len(runs) > 1:
                self._check_overlap(job_id, runs, now)

    def _check_overlap(self, job_id: str, runs: list[Run], now: int) -> None:
        if self.forgot_at is None:
            self._broken(f"two workers believe to hold {job_id}, and the server forgot nothing: {runs}")
        since = self.overlap_since.setdefault(job_id, now)
        if since == now:
            self.count("overlaps after forgetting")
        limit = max(run.worker.longest_overlap(since) for run in runs)
        if now - since > limit:
            self._broken(f"two workers have believed to hold {job_id} for {now - since} ms, more than {limit}: {runs}")

    def _check_run(self, run: Run, now: int) -> None:
        worker = run.worker
        if run.reported is not None or not worker.machine.alive or worker.machine.paused:
            return
        if not run.tracked():
            self._broken(f"a held lock was dropped without a word: {run}")
        if self.server.get(run.lock_key) == run.token:
            run.not_ours_since = None
            if self.forgot_at is None and self.server.left_ms(run.lock_key) < run.believes_for_ms(now):
                self._broken(f"the belief outlasts the lock: {run}")
            return
        if self.forgot_at is None and run.believes(now):
            self._broken(f"believes to hold a lock that is gone, and the server forgot nothing: {run}")
        if run.not_ours_since is None:
            run.not_ours_since = now
        if now - run.not_ours_since > worker.longest_silence(run, run.not_ours_since):
            self._broken(f"lost for {now - run.not_ours_since} ms, and not reported: {run}")

    def _broken(self, what: str) -> None:
        # Kept too: raised inside the package's own code it may be caught there.
        self._first_break = self._first_break or BrokenPromiseError(f"{self.world.now - 1_000_000} ms: {what}")
        raise self._first_break
