"""TroublesContract: locks that are lost, and a Redis that refuses."""

from __future__ import annotations

import time
from dataclasses import replace

from echomq_plugin.testing.contract_job import Plan, Runs
from echomq_plugin.testing.contract_world import ContractWorld


class TroublesContract(ContractWorld):
    """A run that lost its lock writes nothing; without an answer no job starts, and no end is forgotten."""

    def test_a_job_whose_lock_is_taken_writes_nothing(self) -> None:
        """The loser's run is stopped, the new owner's lock and entry stay, and the job is still there to be run."""
        self.start_worker()
        name, job_id = self._job_to_disturb()
        self.client.set(self.keys.lock(job_id), "somebody-else")
        self.client.hset(self.keys.held, job_id, "somebody-else")
        self._wait_until_stopped(name)
        # Another job's end shows that the worker is done with this one.
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        assert self.token(job_id) == "somebody-else", "the loser touched the new owner's lock"
        assert self.client.hget(self.keys.held, job_id) == "somebody-else", "the loser touched the new owner's entry"
        seen = self.runs(name)
        assert seen.started == 1, "the job ran beside its new owner"
        assert not self.can_give_up or not self.is_given_up(job_id), "the loser counted the job as failed"
        # The new owner dies: had the loser done away with the job, nothing would bring it back now.
        self.client.delete(self.keys.lock(job_id))
        self.wait_for_end(name, job_id, replace(seen, started=2, completed=seen.completed + 1))

    def test_a_job_whose_lock_is_deleted_comes_back(self) -> None:
        """A lock that vanishes stops the run, and the job runs a second time: nothing is lost."""
        self.start_worker()
        name, job_id = self._job_to_disturb()
        self.client.delete(self.keys.lock(job_id))
        self._wait_until_stopped(name)
        if self.can_interrupt:
            self.wait_for_end(name, job_id, Runs(started=2, interrupted=1, completed=1))
        else:  # nobody can keep the second run from beginning while the first goes on
            self.wait_until(lambda: self.runs(name).started == 2 and not self.has_traces(job_id), "the job runs again")

    def test_no_job_runs_unlocked_while_redis_refuses_locks(self) -> None:
        """Trouble at start: the job waits, and runs once the trouble is over."""
        self.start_worker()
        name, job_id = self.new_job()
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        self._break_entries()
        name, job_id = self.new_job()
        time.sleep(1.5)
        assert self.runs(name) == Runs(), "a job ran without a lock"
        self._mend_entries()
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_lock_whose_release_failed_goes_later(self) -> None:
        """Trouble at finish: the job completed once, and its lock goes when the trouble is over."""
        self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=1_500)
        self._break_entries()
        self.wait_until(lambda: self.runs(name).completed, "the run ends")
        time.sleep(0.5)
        assert self.token(job_id) is not None, "the lock went without its entry"
        self._mend_entries()
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def _job_to_disturb(self) -> tuple[str, str]:
        """Return name and job id of a job that runs for long, and only this once."""
        name, job_id, _ = self.running_job(runs_for_ms=30_000 if self.can_interrupt else 4_000)
        self.recorder.plan(name, Plan())
        return name, job_id

    def _wait_until_stopped(self, name: str) -> None:
        if self.can_interrupt:
            self.wait_until(lambda: self.runs(name).interrupted, "the run is stopped")
        else:
            self.wait_until(lambda: self.runs(name).completed, "the run ends")

    # Redis trouble that leaves the host's own keys alone: entries of the wrong kind make our scripts fail.

    def _break_entries(self) -> None:
        if self.client.exists(self.keys.held):
            self.client.rename(self.keys.held, f"{self.keys.held}-aside")
        self.client.set(self.keys.held, "not a hash")

    def _mend_entries(self) -> None:
        self.client.delete(self.keys.held)
        if self.client.exists(f"{self.keys.held}-aside"):
            self.client.rename(f"{self.keys.held}-aside", self.keys.held)
