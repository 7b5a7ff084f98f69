"""
HostContract: the rules that every host keeps, as a pytest class. ``docs/write-a-host.md`` shows how to use it.

Each test starts a server of its own and real worker processes, so it proves what the host does, not what its adapter
means to do. Durations are short: locks of two seconds where people have thirty.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import DEFAULT_PREFIX, QueueKeys
from echomq_plugin.testing.contract_job import URL_VARIABLE, Plan, Recorder, Runs

Worker = subprocess.Popen[bytes]

_NEEDS = {
    "test_a_second_delivery_never_runs_beside_the_first": "can_deliver_again",
    "test_a_dropped_delivery_is_not_run_later": "drops_same_delivery",
    "test_every_run_of_a_job_that_retries_at_once_takes_place": "can_retry",
    "test_a_job_past_the_hosts_own_time_limit_gives_its_lock_back": "can_limit_time",
    "test_a_job_that_kills_its_workers_is_given_up": "can_give_up",
    "test_a_forced_shutdown_loses_no_job": "can_be_forced",
}


class HostContract:
    """
    Subclass it, write ``enqueue`` and ``start_worker``, say what your host can do, and run pytest.

    Attributes:
        queue: the queue of the locks, as it stands in the keys.
        can_deliver_again: ``deliver_again`` is written.
        drops_same_delivery: the host names its deliveries, so a second one of a running run is dropped.
        can_retry: the host runs failed jobs again; ``enqueue`` heeds ``retries``.
        can_limit_time: the host has time limits; ``enqueue`` heeds ``time_limit_ms``.
        can_give_up: the host has a way to fail a job that stalled too often; ``is_given_up`` is written.
        can_be_forced: ``force`` ends a worker at once, but not by SIGKILL.
        can_interrupt: a job whose lock is lost is stopped.
        lock_duration: see ``LockOptions``; in ms.
        stalled_interval: likewise.
        limit_s: how long a test waits for anything, in seconds.

    """

    queue: ClassVar[str]
    can_deliver_again: ClassVar[bool] = False
    drops_same_delivery: ClassVar[bool] = False
    can_retry: ClassVar[bool] = False
    can_limit_time: ClassVar[bool] = False
    can_give_up: ClassVar[bool] = False
    can_be_forced: ClassVar[bool] = True
    can_interrupt: ClassVar[bool] = True
    lock_duration: ClassVar[int] = 2_000
    # Passes further apart than `lock_renew_time` and one call: a run whose lock was deleted is told, and cancelled,
    # before its job comes back.
    stalled_interval: ClassVar[int] = 3_000
    limit_s: ClassVar[float] = 40.0

    def __init_subclass__(cls) -> None:
        """Take out the tests of what the host cannot do: pytest does not see what is None."""
        for test, ability in _NEEDS.items():
            if not getattr(cls, ability):
                setattr(cls, test, None)

    # -- what a host author writes -----------------------------------------------------------------------------------

    def enqueue(self, name: str, *, retries: int = 0, time_limit_ms: int | None = None) -> str:
        """
        Put a job into the host's queue that does nothing but call ``contract_job(name)``; return its job id.

        Args:
            name: the job's name.
            retries: how many times the host runs it again after a failure, at once.
            time_limit_ms: the host's own time limit of a run, in ms; None: a long one.

        """
        raise NotImplementedError

    def start_worker(self) -> Worker:
        """Start a worker process through ``self.spawn`` that runs at least one job at a time."""
        raise NotImplementedError

    def deliver_again(self, job_id: str) -> None:
        """Put the delivery that is running into the host's queue a second time, as a broker may."""
        raise NotImplementedError

    def is_given_up(self, job_id: str) -> bool:
        """Tell whether the host counts the job as failed."""
        raise NotImplementedError

    def stop(self, worker: Worker) -> None:
        """Begin a warm shutdown; by default SIGTERM."""
        worker.send_signal(signal.SIGTERM)

    def force(self, worker: Worker) -> None:
        """Force a shutdown in the middle of a job; by default two SIGTERMs."""
        worker.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        worker.send_signal(signal.SIGTERM)

    # -- what it gets ------------------------------------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a worker: short locks, and where ``contract_job`` records."""
        return {
            **os.environ,
            URL_VARIABLE: self.server.url,
            "ECHOMQ_LOCK_DURATION": str(self.lock_duration),
            "ECHOMQ_STALLED_INTERVAL": str(self.stalled_interval),
            "ECHOMQ_DENIED_PAUSE_MS": "200",
        }

    def spawn(self, command: Sequence[str], **environment: str) -> Worker:
        """Start a process in a group of its own, which the test ends; its output is shown when the test fails."""
        log = self._folder / f"worker-{len(self._workers)}.log"
        with log.open("wb") as output:
            worker = subprocess.Popen(  # noqa: S603  # the host author's own command
                command,
                env={**self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """SIGKILL a worker and all its children."""
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.wait(10)

    @pytest.fixture(autouse=True)
    def _world(self, tmp_path: Path) -> Iterator[None]:
        self._folder = tmp_path
        self._workers: list[Worker] = []
        self.keys = QueueKeys(DEFAULT_PREFIX, self.queue)
        with EmbeddedServer() as self.server:
            self.client: Any = redis.Redis.from_url(self.server.url, decode_responses=True)
            self.recorder = Recorder(self.server.url)
            try:
                yield
            finally:
                for worker in self._workers:
                    self.kill(worker)
                self.recorder.close()
                self.client.close()

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; fail with the workers' output when it does not come true."""
        until = time.monotonic() + self.limit_s
        while not condition():
            if time.monotonic() > until:
                logs = (log.read_text(errors="replace")[-3_000:] for log in sorted(self._folder.glob("worker-*.log")))
                pytest.fail(f"not in {self.limit_s} s: {what}\n" + "\n---\n".join(logs))
            time.sleep(0.05)

    def new_job(
        self, *, runs_for_ms: int = 0, fails: int = 0, retries: int = 0, time_limit_ms: int | None = None
    ) -> tuple[str, str]:
        """Enqueue a job with this plan; return its name and its job id."""
        name = f"job-{uuid.uuid4().hex[:8]}"
        self.recorder.plan(name, Plan(runs_for_ms, fails))
        return name, self.enqueue(name, retries=retries, time_limit_ms=time_limit_ms)

    def running_job(self, *, runs_for_ms: int, time_limit_ms: int | None = None) -> tuple[str, str]:
        """Enqueue a job and wait until a run of it has begun."""
        name, job_id = self.new_job(runs_for_ms=runs_for_ms, time_limit_ms=time_limit_ms)
        self.wait_until(lambda: self.runs(name).started, "the job starts")
        return name, job_id

    def runs(self, name: str) -> Runs:
        """Return what the job of this name has recorded."""
        return self.recorder.runs(name)

    def token(self, job_id: str) -> str | None:
        """Return the token in the job's lock, or None."""
        token: str | None = self.client.get(self.keys.lock(job_id))
        return token

    def has_traces(self, job_id: str) -> bool:
        """Tell whether the job still has a lock or an entry."""
        return self.token(job_id) is not None or bool(self.client.hexists(self.keys.held, job_id))

    def wait_for_end(self, name: str, job_id: str, expected: Runs) -> None:
        """Wait until a job has recorded what is expected, and has no lock and no entry any more."""
        self.wait_until(lambda: self.runs(name) == expected, f"{self.runs(name)} becomes {expected}")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name) == expected

    # -- start and finish --------------------------------------------------------------------------------------------

    def test_a_running_job_holds_its_lock_and_gives_it_back(self) -> None:
        """The lock and the entry are there while the job runs, and gone once it has ended."""
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=1_000)
        token = self.token(job_id)
        assert token is not None
        assert self.client.hget(self.keys.held, job_id) == token
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_job_longer_than_its_lock_keeps_it(self) -> None:
        """A job of two lock durations runs once, under one token, beside an idle worker."""
        self.start_worker()
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=2 * self.lock_duration)
        token = self.token(job_id)
        assert token is not None
        while self.runs(name).completed == 0:
            seen = self.token(job_id)
            assert seen in (token, None)
            assert seen == token or self.runs(name).completed
            time.sleep(0.1)
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_failed_job_gives_its_lock_back(self) -> None:
        """A job that raises leaves neither lock nor entry."""
        self.start_worker()
        name, job_id = self.new_job(fails=1)
        self.wait_for_end(name, job_id, Runs(started=1, failed=1))

    def test_a_job_past_the_hosts_own_time_limit_gives_its_lock_back(self) -> None:
        """The host ends a run that takes too long; lock and entry go."""
        self.start_worker()
        name, job_id = self.new_job(runs_for_ms=60_000, time_limit_ms=1_000)
        self.wait_until(lambda: self.runs(name).started, "the job starts")
        self.wait_until(lambda: not self.has_traces(job_id), "the time limit ends the run")
        assert self.runs(name).completed == 0

    # -- deliveries --------------------------------------------------------------------------------------------------

    def test_a_second_delivery_never_runs_beside_the_first(self) -> None:
        """A delivery that comes twice, with idle workers: no two runs at once."""
        self.start_worker()
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=2_000)
        self.deliver_again(job_id)
        self.wait_until(lambda: self.runs(name).completed, "the first run completes")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).overlapping == 0

    def test_a_dropped_delivery_is_not_run_later(self) -> None:
        """A second delivery of a run that goes on is dropped, not kept for later."""
        self.start_worker()
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=1_500)
        self.deliver_again(job_id)
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        assert self.runs(name) == Runs(started=1, completed=1)

    def test_every_run_of_a_job_that_retries_at_once_takes_place(self) -> None:
        """A retry, pushed before its first run let go and taken by an idle worker, is never dropped."""
        for _ in range(3):
            self.start_worker()
        jobs = [self.new_job(fails=2, retries=2) for _ in range(6)]
        for name, job_id in jobs:
            self.wait_for_end(name, job_id, Runs(started=3, failed=2, completed=1))

    # -- trouble -----------------------------------------------------------------------------------------------------

    def test_a_job_whose_lock_is_taken_writes_nothing(self) -> None:
        """The loser's run is stopped, and the new owner's lock and entry are as they were."""
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=30_000 if self.can_interrupt else 2_500)
        self.client.set(self.keys.lock(job_id), "somebody-else")
        self.client.hset(self.keys.held, job_id, "somebody-else")
        if self.can_interrupt:
            self.wait_until(lambda: self.runs(name).interrupted, "the run is stopped")
        else:
            self.wait_until(lambda: self.runs(name).completed, "the run ends")
        # Another job's end shows that the worker is done with this one.
        other, other_id = self.new_job()
        self.wait_for_end(other, other_id, Runs(started=1, completed=1))
        assert self.token(job_id) == "somebody-else"
        assert self.client.hget(self.keys.held, job_id) == "somebody-else"
        assert self.runs(name).started == 1
        # Whatever the loser put back runs once the owner lets go, or the sweep brings it: then nothing was lost.

    def test_a_job_whose_lock_is_deleted_comes_back(self) -> None:
        """A lock that vanishes stops the run, and the job runs again: nothing is lost."""
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=4_000)
        self.client.delete(self.keys.lock(job_id))
        self.wait_until(lambda: self.runs(name).completed == 1 and not self.has_traces(job_id), "the job runs again")
        assert self.runs(name).overlapping == 0

    def test_no_job_runs_unlocked_while_redis_refuses_locks(self) -> None:
        """Trouble at start: the job waits, and runs once the trouble is over."""
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=0)
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        self._break_entries()
        name, job_id = self.new_job()
        time.sleep(1.5)
        assert self.runs(name) == Runs()
        self._mend_entries()
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    def test_a_lock_whose_release_failed_goes_later(self) -> None:
        """Trouble at finish: the job completed once, and its lock goes when the trouble is over."""
        self.start_worker()
        name, job_id = self.running_job(runs_for_ms=1_000)
        self._break_entries()
        self.wait_until(lambda: self.runs(name).completed, "the run ends")
        time.sleep(0.5)
        assert self.token(job_id) is not None
        self._mend_entries()
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))

    # -- deaths and shutdowns ----------------------------------------------------------------------------------------

    def test_the_job_of_a_killed_worker_runs_again(self) -> None:
        """SIGKILL: another worker gets the job back, once, with the same job id."""
        worker = self.start_worker()
        name, job_id = self.running_job(runs_for_ms=3_000)
        self.kill(worker)
        self.recorder.note_killed(name)
        self.start_worker()
        self.wait_until(lambda: self.runs(name).started == 2, "the job starts again")
        assert self.token(job_id) is not None
        self.wait_for_end(name, job_id, Runs(started=2, completed=1))

    def test_a_job_that_kills_its_workers_is_given_up(self) -> None:
        """After max_stalled_count recoveries the host is told to fail the job."""
        name, job_id = self.new_job(runs_for_ms=60_000)
        for number in (1, 2):
            self._kill_worker_in_run(name, number)
        self.start_worker()
        self.wait_until(lambda: self.is_given_up(job_id), "the host counts the job as failed")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).started == 2

    def test_a_warm_shutdown_keeps_locks_until_the_last_job_ends(self) -> None:
        """A worker that is told to stop renews until its job has ended, and then leaves."""
        worker = self.start_worker()
        name, job_id = self.running_job(runs_for_ms=2 * self.lock_duration)
        token = self.token(job_id)
        assert token is not None, "a running job has no lock: take it before the job runs"
        self.stop(worker)
        self.start_worker()
        while self.runs(name).completed == 0:
            assert self.token(job_id) == token or self.runs(name).completed
            time.sleep(0.1)
        self.wait_for_end(name, job_id, Runs(started=1, completed=1))
        self.wait_until(lambda: worker.poll() is not None, "the worker leaves")

    def test_a_forced_shutdown_loses_no_job(self) -> None:
        """A worker that is forced to stop in the middle of a job leaves it to be run again."""
        worker = self.start_worker()
        name, job_id = self.running_job(runs_for_ms=3_000)
        self.force(worker)
        self.wait_until(lambda: worker.poll() is not None, "the worker leaves")
        self.recorder.note_killed(name)
        self.start_worker()
        self.wait_until(lambda: self.runs(name).completed == 1, "the job completes")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name).overlapping == 0

    def _kill_worker_in_run(self, name: str, number: int) -> None:
        worker = self.start_worker()
        self.wait_until(lambda: self.runs(name).started == number, f"run {number} starts")
        self.kill(worker)
        self.recorder.note_killed(name)

    # Redis trouble that leaves the host's own keys alone: entries of the wrong kind make our scripts fail.

    def _break_entries(self) -> None:
        if self.client.exists(self.keys.held):
            self.client.rename(self.keys.held, f"{self.keys.held}-aside")
        self.client.set(self.keys.held, "not a hash")

    def _mend_entries(self) -> None:
        self.client.delete(self.keys.held)
        if self.client.exists(f"{self.keys.held}-aside"):
            self.client.rename(f"{self.keys.held}-aside", self.keys.held)
