"""StopsJobs: signals and commands for a worker that runs many jobs."""

from __future__ import annotations

import signal
from typing import Any, Final

import gevent
import redis.exceptions
from rq.command import parse_payload
from rq.job import Job
from rq.queue import Queue
from rq.timeouts import JobTimeoutException
from rq.utils import now

from echomq_plugin.hosts.rq.greenlet_runs import HERE, Slot, StopJob
from echomq_plugin.hosts.rq.runs import Run
from echomq_plugin.hosts.rq.taking import TakesJobs

_SAME_SIGNAL_S: Final = 1.0
"""A second signal within this time is the first one once more, as RQ has it."""


class StopsJobs(TakesJobs):
    """The part of GeventWorker that ends: the worker, or one job of many."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.slots: dict[str, Slot] = {}
        self._signals: list[Any] = []
        self._commands: Any = None
        super().__init__(*args, **kwargs)

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
