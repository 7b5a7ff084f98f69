"""
GeventWorker: many RQ jobs at once in one process, each in a greenlet, under its lock and its own time limit.

Importing this module monkey-patches the process unless that is done already.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Final

import gevent
import gevent.event
import gevent.lock
import gevent.pool

from echomq_plugin.hosts.rq.late_patching import SAY, patch_if_needed

PATCHED_LATE: Final = patch_if_needed()

import redis.exceptions  # noqa: E402
from rq.command import parse_payload  # noqa: E402
from rq.job import Job  # noqa: E402
from rq.queue import Queue  # noqa: E402
from rq.timeouts import JobTimeoutException  # noqa: E402
from rq.utils import now  # noqa: E402
from rq.worker import SimpleWorker, WorkerStatus  # noqa: E402

try:
    from rq.worker.base import StopRequested
except ImportError:  # RQ before 3.0
    from rq.worker import StopRequested

from echomq_plugin.errors import OptionError  # noqa: E402
from echomq_plugin.events import LostLock  # noqa: E402
from echomq_plugin.hosts.rq.greenlet_runs import HERE, GreenletDeathPenalty, Slot, StopJob  # noqa: E402
from echomq_plugin.hosts.rq.locking import LockedJobs  # noqa: E402
from echomq_plugin.hosts.rq.runs import Run  # noqa: E402
from echomq_plugin.interrupts import LockLostInterrupt  # noqa: E402

CONCURRENCY_VARIABLE: Final = "ECHOMQ_CONCURRENCY"
DEFAULT_CONCURRENCY: Final = 100

_POLL_S: Final = 1
"""How long a pop may wait: a stop is seen after it, and never cuts it off with a job in its hands."""
_BEAT_S: Final = 5.0
_LOOK_S: Final = 1.0
_SPARE_CONNECTIONS: Final = 32
_SAME_SIGNAL_S: Final = 1.0
"""A second signal within this time is the first one once more, as RQ has it."""


def concurrency_from_env() -> int:
    """
    Read how many jobs run at once.

    Raises:
        OptionError: it is no whole number, or less than 1.

    """
    text = os.environ.get(CONCURRENCY_VARIABLE, "") or str(DEFAULT_CONCURRENCY)
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < 1:
        raise OptionError(CONCURRENCY_VARIABLE, text, "must be a whole number, 1 or more")
    return int(text)


class GeventWorker(LockedJobs, SimpleWorker):
    """
    ``python -m gevent.monkey $(which rq) worker -w echomq_plugin.hosts.rq.GeventWorker``.

    ``ECHOMQ_CONCURRENCY`` says how many jobs run at once. Nothing is taken from a queue while no slot is free.
    """

    lock_side = "auto"
    death_penalty_class = GreenletDeathPenalty

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.slots: dict[str, Slot] = {}
        super().__init__(*args, **kwargs)
        self.concurrency = DEFAULT_CONCURRENCY
        self._free = gevent.lock.BoundedSemaphore(DEFAULT_CONCURRENCY)
        self._jobs: gevent.pool.Group = gevent.pool.Group()
        self._changed = gevent.event.Event()
        self._failure: BaseException | None = None
        self._paused_until = 0.0
        self._next_beat = 0.0
        self._next_look = 0.0
        self._signals: list[Any] = []
        self._beats: Any = None
        self._commands: Any = None

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
            self._jobs.join()
        finally:
            if self._beats is not None:
                self._beats.kill()
            for handler in self._signals:
                handler.cancel()
            self._signals = []
            super().teardown()

    def _install_signal_handlers(self) -> None:
        # A Python signal handler would raise in whichever greenlet happens to run.
        for number in (signal.SIGINT, signal.SIGTERM):
            self._signals.append(gevent.signal_handler(number, self.request_stop, number, None))

    def request_stop(self, signum: int, frame: Any) -> None:
        """Stop warmly at the first signal: take no more jobs, wait for those that run. The second one is cold."""
        if self._stop_requested:
            self.request_force_stop(signum, frame)
            return
        self.log.info("Worker %s: warm shut down requested", self.name)
        self._shutdown_requested_date = now()
        self._stop_requested = True
        self._changed.set()
        try:
            self.set_shutdown_requested_date()
            if self.scheduler:
                self.stop_scheduler()
        except (redis.exceptions.RedisError, OSError) as error:
            self.log.warning("Worker %s: the shutdown is not recorded (%s)", self.name, error)

    def request_force_stop(self, signum: int, frame: Any) -> None:
        """Stop coldly: interrupt the jobs that run; each is put back."""
        if (now() - self._shutdown_requested_date).total_seconds() < _SAME_SIGNAL_S:
            return
        self.log.warning("Worker %s: cold shut down", self.name)
        self._forced_stop = True
        for slot in list(self.slots.values()):
            slot.interrupt(SystemExit())

    def check_for_suspension(self, burst: bool) -> None:
        """Look whether workers are suspended, once a second and not once a job. Jobs that run go on."""
        if time.monotonic() >= self._next_look:
            super().check_for_suspension(burst)
            self._next_look = time.monotonic() + _LOOK_S

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """Send the worker's own heartbeat, every few seconds and not at every job."""
        if pipeline is not None:
            super().heartbeat(timeout, pipeline=pipeline)
        elif time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_S
            super().heartbeat(timeout)

    def get_heartbeat_ttl(self, job: Job, *args: Any, **kwargs: Any) -> int:
        """Return how long a run's record lives after a heartbeat, in s: as for RQ's forking worker."""
        return int(self.job_monitoring_interval) + 60

    def _send_heartbeats(self) -> None:
        while True:
            gevent.sleep(self.job_monitoring_interval)
            for job_id, run in list(self.runs.items()):
                if run.execution is None or run.job is None:
                    continue
                HERE.run = run
                try:
                    if self.runs.get(job_id) is run:
                        self._maintain(run)
                except (redis.exceptions.RedisError, OSError) as error:
                    self.log.warning("Worker %s: no heartbeat for job %s (%s)", self.name, job_id, error)
                finally:
                    HERE.run = None

    def _maintain(self, run: Run) -> None:
        if isinstance(getattr(self, "executions", None), dict):
            self.maintain_heartbeats(run.job, run.execution)
        else:
            self.maintain_heartbeats(run.job)

    # -- taking jobs -------------------------------------------------------------------------------------------------

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Return the next job once a slot is free; None when there is none and none runs (burst, longest idle time)."""
        idle_since = time.monotonic()
        wait_s = 1.0
        while True:
            self._stop_if_asked()
            if self._free.locked() or time.monotonic() < self._paused_until:
                self._wait_for_change()
                continue
            try:
                self.heartbeat()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                result = self._pop(None if timeout is None or self._jobs else _POLL_S)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                self.log.error("Worker %s: no answer from Redis (%s), again in %d s", self.name, error, wait_s)
                gevent.sleep(wait_s)
                wait_s = min(wait_s * self.exponential_backoff_factor, self.max_connection_wait_time)
                continue
            if result is not None:
                return result
            if self._jobs:
                idle_since = time.monotonic()
                self._wait_for_change(0.05 if timeout is None else 0.2)
            elif timeout is None or (max_idle_time is not None and time.monotonic() - idle_since >= max_idle_time):
                return None
            else:
                self._idle()

    def _stop_if_asked(self) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        if self._stop_requested:
            raise StopRequested

    def _pop(self, timeout: int | None) -> tuple[Job, Queue] | None:
        from rq.exceptions import DequeueTimeout

        try:
            result = self.queue_class.dequeue_any(
                self._ordered_queues,
                timeout,
                connection=self.connection,
                job_class=self.job_class,
                serializer=self.serializer,
                death_penalty_class=self.death_penalty_class,
            )
        except DequeueTimeout:
            return None
        if result is None:
            return None
        job, queue = result
        self.reorder_queues(reference_queue=queue)
        job.redis_server_version = self.get_redis_server_version()
        self.log.info("Worker %s: %s: %s (%s)", self.name, queue.name, job.description, job.id)
        return job, queue

    def _wait_for_change(self, limit_s: float = _LOOK_S) -> None:
        pause_s = self._paused_until - time.monotonic()
        self._changed.wait(min(limit_s, pause_s) if pause_s > 0 else limit_s)
        self._changed.clear()

    def _idle(self) -> None:
        if self._state != WorkerStatus.IDLE:
            self.set_state(WorkerStatus.IDLE)

    def pause_deliveries(self, ms: int) -> None:
        """Take no delivery for a while; jobs that run go on."""
        self._paused_until = max(self._paused_until, time.monotonic() + ms / 1000)

    # -- running them ------------------------------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job in a greenlet of its own."""
        self._free.acquire()
        self._jobs.add(gevent.spawn(self._run_in_slot, job, queue))

    def _run_in_slot(self, job: Job, queue: Queue) -> None:
        try:
            self.run_under_lock(job, queue)
        except SystemExit:
            pass  # a cold shutdown; the job is back in its queue
        except BaseException as error:  # as in RQ's own loop: it ends the worker, and is logged there
            self._failure = error
        finally:
            self._free.release()
            self._changed.set()

    def run_locked(self, run: Run, job: Job, queue: Queue) -> None:
        """Run the job in this greenlet's slot."""
        run.job = job
        HERE.run, HERE.slot = run, Slot()
        self.slots[job.id] = HERE.slot
        if run.cancelled:
            return
        try:
            super().run_locked(run, job, queue)
        except StopJob:
            self._fail_stopped(run, job, queue)
        finally:
            self.slots.pop(job.id, None)

    def handle_execution_ended(self, job: Job, *args: Any, **kwargs: Any) -> None:
        """Leave RQ's code also where the job was stopped, or its lock is lost: neither has failed."""
        waiting = HERE.slot.reason if HERE.slot is not None else None
        if isinstance(waiting, (StopJob, LockLostInterrupt)) or (isinstance(waiting, SystemExit) and self._forced_stop):
            raise waiting
        super().handle_execution_ended(job, *args, **kwargs)

    def cancel_run(self, run: Run, lost: LostLock) -> None:
        """Interrupt the job. Called in the cancel lane, from any thread."""
        super().cancel_run(run, lost)
        slot = self.slots.get(run.job_id)
        if slot is not None:
            slot.interrupt(LockLostInterrupt(lost))

    # -- stop-job, for one of many -----------------------------------------------------------------------------------

    def subscribe(self) -> None:
        """Listen for commands in a greenlet: a thread of RQ's cannot always be joined once the process is patched."""
        self.pubsub = self.connection.pubsub()
        self.pubsub.subscribe(**{self.pubsub_channel_name: self.handle_payload})
        self._commands = gevent.spawn(self._listen)

    def unsubscribe(self) -> None:
        """Stop listening."""
        if self._commands is not None:
            self._commands.kill()
            self.pubsub.close()

    def _listen(self) -> None:
        while True:
            try:
                self.pubsub.get_message(ignore_subscribe_messages=True, timeout=60)
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
                self.log.error("Worker %s: no commands from Redis (%s), again in 2 s", self.name, error)
                gevent.sleep(2)
            except Exception:
                self.log.exception("Worker %s: a command could not be followed", self.name)

    def handle_payload(self, message: Any) -> None:
        """Stop the one job that is meant."""
        payload = parse_payload(message)
        if payload.get("command") in ("stop-job", "stop-execution"):
            self._stop_job(payload)
        else:
            super().handle_payload(message)

    def _stop_job(self, payload: dict[str, Any]) -> None:
        job_id = str(payload.get("job_id", ""))
        run, slot = self.runs.get(job_id), self.slots.get(job_id)
        execution_id = payload.get("execution_id")
        if run is None or slot is None or (execution_id and getattr(run.execution, "id", None) != execution_id):
            self.log.warning("Worker %s: not working on job %s, command ignored", self.name, job_id)
            return
        slot.stopped = True
        slot.interrupt(StopJob())

    @property
    def _stopped_job_id(self) -> str | None:  # type: ignore[override]
        """What RQ's failure handler asks: was the job of this greenlet stopped?"""
        slot, run = HERE.slot, HERE.run
        return run.job_id if run is not None and slot is not None and slot.stopped else None

    @_stopped_job_id.setter
    def _stopped_job_id(self, job_id: str | None) -> None:
        if job_id is None and HERE.slot is not None:
            HERE.slot.stopped = False

    def _fail_stopped(self, run: Run, job: Job, queue: Queue) -> None:
        self.log.warning("Worker %s: job %s stopped by user", self.name, job.id)
        job.ended_at = now()
        if HERE.slot is not None:
            HERE.slot.reason = None
        try:
            if job.stopped_callback:
                with self.death_penalty_class(job.stopped_callback_timeout, JobTimeoutException, job_id=job.id):
                    job.stopped_callback(job, job.connection)
        except Exception:
            self.log.exception("Worker %s: stopped callback of job %s raised", self.name, job.id)
        details = {"execution": run.execution} if isinstance(getattr(self, "executions", None), dict) else {}
        self.handle_job_failure(job, queue=queue, exc_string="Job stopped by user.", **details)


if not hasattr(SimpleWorker, "execution"):
    # RQ 2 knows one execution for each worker; here each greenlet has its own.
    def _get_execution(worker: GeventWorker) -> Any:
        return HERE.run.execution if HERE.run is not None else None

    def _set_execution(worker: GeventWorker, execution: Any) -> None:
        if HERE.run is not None:
            HERE.run.execution = execution

    GeventWorker.execution = property(_get_execution, _set_execution)
