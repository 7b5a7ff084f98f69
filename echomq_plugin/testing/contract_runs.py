"""RunsContract: starts, ends and deliveries, while nothing goes wrong."""

from __future__ import annotations

import time

from echomq_plugin.testing.contract_job import Runs
from echomq_plugin.testing.contract_world import ContractWorld, needs


class RunsContract(ContractWorld):
    """Each run has a lock, from before it starts until after its end; no delivery is lost and none runs beside it."""

    def test_a_running_job_holds_its_lock_and_gives_it_back(self) -> None:
        """The lock and the entry are there while the job runs, and gone once it has ended."""
        self.start_worker()
        name, job_id, token = self.running_job(runs_for_ms=1_500)
        assert self.client.hget(self.keys.held, job_id) == token, "a running job has no entry"
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_job_longer_than_its_lock_keeps_it(self) -> None:
        """A job of two lock durations runs once, under one token, beside an idle worker."""
        self.start_worker()
        self.start_worker()
        name, job_id, token = self.running_job(runs_for_ms=2 * self.lock_duration)
        while self.runs(name).completed == 0:
            seen = self.token(job_id)
            assert seen in (token, None), "another run took the lock"
            assert seen == token or self.runs(name).completed, "the lock of a running job was not renewed"
            time.sleep(0.1)
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_failed_job_gives_its_lock_back(self) -> None:
        """A job that raises has its lock until then, and leaves neither lock nor entry."""
        self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=1_500, fails=1)
        self.wait_for_end(name, job_id, Runs(started=1, failed=1))

    @needs("can_limit_time")
    def test_a_job_past_the_hosts_own_time_limit_gives_its_lock_back(self) -> None:
        """The host ends a run that takes too long; lock and entry go, and the job is not run again."""
        self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=60_000, time_limit_ms=2_000)
        self.wait_for_end(name, job_id, Runs(started=1, interrupted=1))

    def test_a_job_whose_lock_is_held_waits_for_it(self) -> None:
        """A delivery that may not run now goes back: it neither runs beside the holder nor is dropped."""
        name, job_id = self.new_job()
        self.client.set(self.keys.lock(job_id), "somebody-else")
        self.start_worker()
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        assert self.runs(name) == Runs(), "a job ran whose lock is somebody else's"
        self.client.delete(self.keys.lock(job_id))
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    @needs("can_deliver_again")
    def test_a_second_delivery_never_runs_beside_the_first(self) -> None:
        """A delivery that comes twice, with idle workers: no two runs at once, and only a named one may be dropped."""
        self.start_worker()
        self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=4_000)
        self.deliver_again(job_id)
        least = 1 if self.drops_same_delivery else 2
        self.wait_until(lambda: self.runs(name).completed >= least, f"{least} of two deliveries complete")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).overlapping == 0, "two runs of one job at once"

    @needs("drops_same_delivery")
    def test_a_dropped_delivery_is_not_run_later(self) -> None:
        """A second delivery of a run that goes on is dropped, not kept for later."""
        self.start_worker()
        self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=4_000)
        self.deliver_again(job_id)
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        time.sleep(1.0)  # several times the pause after which a delivery that was kept comes back
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        assert self.runs(name) == Runs(started=1, completed=1), "the second delivery ran after the first"

    @needs("can_retry")
    def test_every_run_of_a_job_that_retries_at_once_takes_place(self) -> None:
        """A retry, pushed before its first run let go and taken by an idle worker, is never dropped."""
        for _ in range(3):
            self.start_worker()
        jobs = [self.new_job(fails=2, retries=2) for _ in range(6)]
        for name, job_id in jobs:
            self.wait_for_end(name, job_id, Runs(started=3, failed=2, completed=1))
