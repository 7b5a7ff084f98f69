"""
GeventWorker: many RQ jobs at once in one process, each in a greenlet, under its lock and its own time limit.

Importing this module monkey-patches the process unless that is done already.
"""

from __future__ import annotations

import inspect
import os
import time
from typing import Any, Final

import gevent
import gevent.event
import gevent.lock
import gevent.pool

from echomq_plugin.hosts.rq.late_patching import SAY, patch_if_needed

PATCHED_LATE: Final = patch_if_needed()

import redis.exceptions  # noqa: E402
from rq.executions import Execution  # noqa: E402
from rq.job import Job  # noqa: E402
from rq.queue import Queue  # noqa: E402
from rq.utils import now  # noqa: E402
from rq.worker import SimpleWorker, WorkerStatus  # noqa: E402

from echomq_plugin.errors import OptionError  # noqa: E402
from echomq_plugin.events import LostLock  # noqa: E402
from echomq_plugin.hosts.rq.fencing import has_callbacks  # noqa: E402
from echomq_plugin.hosts.rq.greenlet_runs import HERE, GreenletDeathPenalty, Slot, StopJob  # noqa: E402
from echomq_plugin.hosts.rq.runs import Run  # noqa: E402
from echomq_plugin.hosts.rq.stopping import StopsJobs  # noqa: E402
from echomq_plugin.interrupts import LockLostInterrupt  # noqa: E402
from echomq_plugin.options import LARGEST  # noqa: E402

CONCURRENCY_VARIABLE: Final = "ECHOMQ_CONCURRENCY"
DEFAULT_CONCURRENCY: Final = 100

_NAMED: Final = "worker_name" in inspect.signature(Execution.create).parameters
_BEAT_S: Final = 5.0
_SPARE_CONNECTIONS: Final = 32
_BOOKKEEPERS: Final = 32
"""How many jobs may be starting or ending at once."""


def concurrency_from_env() -> int:
    """
    Read how many jobs run at once.

    Raises:
        OptionError: it is no whole number, less than 1, or more than ``LARGEST``.

    """
    text = os.environ.get(CONCURRENCY_VARIABLE, "") or str(DEFAULT_CONCURRENCY)
    digits = text.strip().lstrip("0")
    if not digits.isascii() or not digits.isdigit():
        raise OptionError(CONCURRENCY_VARIABLE, text, "must be a whole number, 1 or more")
    if len(digits) > len(str(LARGEST)) or int(digits) > LARGEST:
        raise OptionError(CONCURRENCY_VARIABLE, text, f"must be at most {LARGEST}")
    return int(digits)


class GeventWorker(StopsJobs):
    """
    ``python -m gevent.monkey $(which rq) worker -w echomq_plugin.hosts.rq.GeventWorker``.

    ``ECHOMQ_CONCURRENCY`` says how many jobs run at once. Nothing is taken from a queue while no slot is free.
    """

    lock_side = "auto"
    death_penalty_class = GreenletDeathPenalty

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.concurrency = DEFAULT_CONCURRENCY
        self._free = gevent.lock.BoundedSemaphore(DEFAULT_CONCURRENCY)
        self._jobs: gevent.pool.Group = gevent.pool.Group()
        self._changed = gevent.event.Event()
        self._permits = gevent.lock.BoundedSemaphore(_BOOKKEEPERS)
        self._next_beat = 0.0
        self._beats: Any = None

    # -- life of the worker ------------------------------------------------------------------------------------------

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Check the concurrency as well, and begin to send heartbeats for all runs."""
        self.concurrency = concurrency_from_env()
        self._free = gevent.lock.BoundedSemaphore(self.concurrency)
        pool = self.connection.connection_pool
        # Newer drivers allow a hundred connections where nothing else is said.
        pool.max_connections = max(pool.max_connections or 0, self.concurrency + _SPARE_CONNECTIONS)
        super().bootstrap(*args, **kwargs)
        if PATCHED_LATE:
            self.log.warning("Worker %s: %s", self.name, SAY)
        self.log.info("Worker %s: up to %d jobs at once", self.name, self.concurrency)
        self._beats = gevent.spawn(self._send_heartbeats)

    def teardown(self) -> None:
        """Wait for the jobs that run, renewing and sending heartbeats all the while; then say goodbye."""
        try:
            self.put_back_taken()
            self._jobs.join()
        finally:
            if self._beats is not None:
                self._beats.kill()
            for handler in self._signals:
                handler.cancel()
            self._signals = []
            super().teardown()

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send the worker's own heartbeat: every few seconds and with those of the runs, not at every job."""
        if HERE.beats:
            super().heartbeat(timeout, pipeline=pipeline)
        elif time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_S
            try:
                super().heartbeat()
            except (redis.exceptions.RedisError, OSError) as error:
                self.log.warning("Worker %s: no heartbeat (%s)", self.name, error)  # RQ's loop would end by it

    def set_state(self, state: str, *args: Any, **kwargs: Any) -> None:
        """Write the worker's state when it changes; the end of one job of many is no change."""
        if state != self._state and not (state == WorkerStatus.IDLE and self._jobs):
            super().set_state(state, *args, **kwargs)

    def get_heartbeat_ttl(self, job: Job, *args: Any, **kwargs: Any) -> int:
        """Return how long a run's record lives after a heartbeat, in s: as for RQ's forking worker."""
        return int(self.job_monitoring_interval) + 60

    def _send_heartbeats(self) -> None:
        while True:
            gevent.sleep(self.job_monitoring_interval)
            for job_id, run in list(self.runs.items()):
                if run.execution is None or run.job is None:
                    continue
                HERE.run, HERE.beats = run, True
                try:
                    if self.runs.get(job_id) is run:
                        self._maintain(run)
                except (redis.exceptions.RedisError, OSError) as error:
                    self.log.warning("Worker %s: no heartbeat for job %s (%s)", self.name, job_id, error)
                finally:
                    HERE.run, HERE.beats = None, False

    def _maintain(self, run: Run) -> None:
        if isinstance(getattr(self, "executions", None), dict):
            self.maintain_heartbeats(run.job, run.execution)
        else:
            self.maintain_heartbeats(run.job)

    # -- running them ------------------------------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job in a greenlet of its own."""
        self._free.acquire()
        self._jobs.add(gevent.spawn(self._run_in_slot, job, queue))

    def _run_in_slot(self, job: Job, queue: Queue) -> None:
        self._permits.acquire()
        try:
            self.run_under_lock(job, queue)
        except SystemExit:
            pass  # a cold shutdown; the job is back in its queue
        except (redis.exceptions.RedisError, OSError):
            # RQ's own reads and writes for one job: its entry stays, and the sweep brings it back. The others go on.
            self.log.exception("Worker %s: no answer from Redis ends this run of job %s", self.name, job.id)
            self.pause_deliveries(self.lock_plugin.options.denied_pause_ms)
        except BaseException as error:  # as in RQ's own loop: it ends the worker, and is logged there
            self._failure = error
        finally:
            self._permits.release()
            self._free.release()
            self._changed.set()

    def prepare_execution(self, job: Job, *args: Any, **kwargs: Any) -> Execution:
        """Record the run and prepare the job in one transaction, where RQ makes two."""
        ttl = self.get_heartbeat_ttl(job)
        with self.connection.pipeline() as pipeline:
            execution = Execution.create(job, ttl, pipeline=pipeline, **({"worker_name": self.name} if _NAMED else {}))
            self.set_state(WorkerStatus.BUSY, pipeline=pipeline)
            job.heartbeat(now(), ttl, pipeline=pipeline)
            job.prepare_for_execution(self.name, pipeline=pipeline)
            pipeline.persist(job.key)
            if len(self.queues) == 1:
                pipeline.lrem(self.queues[0].intermediate_queue_key, 1, job.id)
            pipeline.execute()
        if HERE.run is not None:
            HERE.run.execution = execution
        if isinstance(getattr(self, "executions", None), dict):
            self.executions[execution.id] = execution
        return execution

    def prepare_job_execution(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do."""

    def run_of(self, job: Job) -> Run | None:
        """Return this greenlet's run: a run that lost its lock may end beside the job's next one."""
        run = HERE.run
        return run if run is not None and run.job_id == job.id else super().run_of(job)

    def run_locked(self, run: Run, job: Job, queue: Queue) -> None:
        """Run the job in this greenlet's slot."""
        run.job = job
        HERE.run, HERE.slot = run, Slot(self._permits)
        self.slots[job.id] = HERE.slot
        try:
            if self._forced_stop:
                raise SystemExit
            if run.cancelled:
                return
            super().run_locked(run, job, queue)
        except StopJob:
            self._fail_stopped(run, job, queue)
        finally:
            if self.slots.get(job.id) is HERE.slot:
                del self.slots[job.id]
            if isinstance(getattr(self, "executions", None), dict) and run.execution is not None:
                self.executions.pop(run.execution.id, None)

    def handle_execution_ended(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """Leave RQ's code also where the job was stopped, or its lock is lost: neither has failed."""
        waiting = HERE.slot.reason if HERE.slot is not None else None
        lost = isinstance(waiting, LockLostInterrupt) and HERE.run is not None and HERE.run.lost
        if waiting is not None and (lost or isinstance(waiting, StopJob) or self._forced_stop):
            raise waiting
        if has_callbacks(job):
            super().handle_execution_ended(job, *args, **kwargs)
        else:
            # RQ would write the heartbeat of a job that is about to be written whole.
            job.ended_at = job.last_heartbeat = now()

    def cancel_run(self, run: Run, lost: LostLock) -> None:
        """Interrupt the job. Called in the cancel lane, from any thread."""
        super().cancel_run(run, lost)
        slot = self.slots.get(run.job_id) if self.runs.get(run.job_id) is run else None
        if slot is not None:
            slot.interrupt(LockLostInterrupt(lost))


if not hasattr(SimpleWorker, "execution"):
    # RQ 2 knows one execution for each worker; here each greenlet has its own.
    def _get_execution(worker: GeventWorker) -> Any:
        return HERE.run.execution if HERE.run is not None else None

    def _set_execution(worker: GeventWorker, execution: Any) -> None:
        if HERE.run is not None:
            HERE.run.execution = execution

    GeventWorker.execution = property(_get_execution, _set_execution)
