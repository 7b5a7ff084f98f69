"""DeathsContract: workers that are killed, and workers that are told to stop."""

from __future__ import annotations

import time

from echomq_plugin.testing.contract_job import Runs
from echomq_plugin.testing.contract_world import ContractWorld, needs


class DeathsContract(ContractWorld):
    """No job is lost with its worker, and none keeps killing workers for ever."""

    def test_the_job_of_a_killed_worker_runs_again(self) -> None:
        """SIGKILL: another worker gets the job back, once, with the same job id."""
        worker = self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=3_000)
        self.kill(worker)
        self.recorder.note_killed(name)
        self.start_worker()
        self.wait_until(lambda: self.runs(name).started == 2, "the job starts again")
        assert self.token(job_id) is not None, "a running job has no lock"
        self.wait_for_end(name, job_id, Runs(started=2, completed=1))

    @needs("can_give_up")
    def test_a_job_that_kills_its_workers_is_given_up(self) -> None:
        """After max_stalled_count recoveries the host is told to fail the job."""
        name, job_id = self.new_job(runs_for_ms=60_000)
        for number in (1, 2):
            self._kill_worker_in_run(name, number)
        self.start_worker()
        self.wait_until(lambda: self.is_given_up(job_id), "the host counts the job as failed")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).started == 2, "the job was given up, and run all the same"

    def test_a_warm_shutdown_keeps_locks_until_the_last_job_ends(self) -> None:
        """A worker that is told to stop renews until its job has ended, and then leaves."""
        worker = self.start_worker()
        name, job_id, token = self.running_job(runs_for_ms=2 * self.lock_duration)
        self.stop(worker)
        self.start_worker()
        while self.runs(name).completed == 0:
            assert self.token(job_id) == token or self.runs(name).completed, "the lock went before its job ended"
            time.sleep(0.1)
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        self.wait_until(lambda: worker.poll() is not None, "the worker leaves")

    @needs("can_be_forced")
    def test_a_forced_shutdown_loses_no_job(self) -> None:
        """A worker that is forced to stop in the middle of a job leaves it to be run again."""
        worker = self.start_worker()
        name, job_id, _ = self.running_job(runs_for_ms=3_000)
        self.force(worker)
        self.wait_until(lambda: worker.poll() is not None, "the worker leaves")
        self.recorder.note_killed(name)
        self.start_worker()
        self.wait_until(lambda: self.runs(name).completed == 1, "the job completes")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).overlapping == 0, "two runs of one job at once"

    def _kill_worker_in_run(self, name: str, number: int) -> None:
        worker = self.start_worker()
        self.wait_until(lambda: self.runs(name).started == number, f"run {number} starts")
        self.kill(worker)
        self.recorder.note_killed(name)
