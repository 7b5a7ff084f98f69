"""ContractWorld: what a host author writes for ``HostContract``, and what its tests stand on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis

from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import DEFAULT_PREFIX, QueueKeys
from echomq_plugin.testing.contract_job import URL_VARIABLE, Plan, Recorder, Runs

Worker = subprocess.Popen[bytes]
Test = Callable[..., None]


def needs(ability: str) -> Callable[[Test], Test]:
    """Mark a test of something that not every host can do."""

    def mark(test: Test) -> Test:
        test.__dict__["needs"] = ability
        return test

    return mark


class ContractWorld:
    """
    One server, the workers that a test starts, and what their jobs record.

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
        with self.opened(tmp_path):
            yield

    @contextmanager
    def opened(self, folder: Path) -> Iterator[None]:
        """Start the server, and end it and all workers; their output goes to files in the folder."""
        self._folder = folder
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

    def running_job(
        self, *, runs_for_ms: int, fails: int = 0, time_limit_ms: int | None = None
    ) -> tuple[str, str, str]:
        """Enqueue a job and wait until a run of it has begun; return name, job id and the token in its lock."""
        name, job_id = self.new_job(runs_for_ms=runs_for_ms, fails=fails, time_limit_ms=time_limit_ms)
        self.wait_until(lambda: self.runs(name).started, "the job starts")
        token = self.token(job_id)
        assert token is not None, "a running job has no lock: take it before the job runs"
        return name, job_id, token

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
        self.wait_until(lambda: self.runs(name) == expected, f"the job records {expected}")
        self.wait_until(lambda: not self.has_traces(job_id), "lock and entry are gone")
        assert self.runs(name) == expected, "a run more than there was reason for"
