"""
LockedJobs: the part that all locked workers share. Lock, run in RQ's own way, give back.

Put it before a worker class of RQ's: ``class Mine(LockedJobs, SimpleWorker)``.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

import pluggy
from redis.exceptions import RedisError
from rq.job import Job, JobStatus
from rq.queue import Queue
from rq.worker import WorkerStatus

from echomq_plugin.attach import attach
from echomq_plugin.errors import LockHeldError, StartUndecidedError
from echomq_plugin.events import FinishResult, LostLock, Outcome
from echomq_plugin.hosts.rq import deliveries
from echomq_plugin.hosts.rq.fencing import FencedWrites
from echomq_plugin.hosts.rq.runs import Run, RunLostError
from echomq_plugin.hosts.rq.stalled import StalledJobs, payload_of, requeue
from echomq_plugin.interrupts import LockLostInterrupt
from echomq_plugin.keys import QueueKeys, percent_encoded
from echomq_plugin.locks import Lock
from echomq_plugin.options import LockOptions
from echomq_plugin.plugin import LockPlugin
from echomq_plugin.reports import Side

SHORTEST_PAUSE_MS: Final = 20
"""The first pause after a denial, in ms: a job's own retry is mostly pushed just before its first run lets go."""

_STOP_LIMIT_MS: Final = 5_000

_OUTCOMES: Final[dict[Any, Outcome]] = {
    JobStatus.FINISHED: "completed",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "cancelled",
    JobStatus.CANCELED: "cancelled",
    JobStatus.STARTED: "interrupted",
    None: "completed",  # kept for no time at all
}
"""What a job's status says about a run that has ended; every other status means that the job comes again."""


class LockedJobs(FencedWrites):
    """
    Runs each job under its lock.

    Attributes:
        lock_side: where hooks run, see ``Reports``.
        make_plugin_manager: returns the manager whose hooks are called; override it to use your own.

    """

    lock_side: Side = "native"
    make_plugin_manager: Any = staticmethod(lambda: pluggy.PluginManager("echomq"))

    _lock_plugin: LockPlugin | None = None
    _denied_in_a_row = 0

    # RQ's own attributes, whatever its version
    queues: list[Queue]
    job_class: Any
    queue_class: Any
    serializer: Any
    name: str
    log: Any
    execution: Any
    _state: str
    _stop_requested: bool
    _shutdown_requested_date: Any

    @property
    def lock_plugin(self) -> LockPlugin:
        """The library's side; made when it is first asked for, without I/O."""
        if self._lock_plugin is None:
            pm = self.make_plugin_manager()
            options = LockOptions.from_env()
            for queue in self.queues:
                plugin = attach(pm, self.connection, percent_encoded(queue.name), options, side=self.lock_side)
            StalledJobs(self).register(pm)
            self._lock_plugin = plugin
        return self._lock_plugin

    # -- life of the worker ------------------------------------------------------------------------------------------

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Check options, names and server before the worker is registered and takes its first job."""
        self.lock_plugin.start()
        try:
            super().bootstrap(*args, **kwargs)  # type: ignore[misc]
        except BaseException:
            self.lock_plugin.stop(0)
            raise

    def teardown(self) -> None:
        """Stop renewing once RQ has said goodbye: no job runs any more."""
        try:
            super().teardown()  # type: ignore[misc]
        finally:
            if self._lock_plugin is not None and not self.is_work_horse():
                self._lock_plugin.stop(_STOP_LIMIT_MS)

    def is_work_horse(self) -> bool:
        """Tell whether this process runs one job for a worker."""
        return bool(getattr(self, "_is_horse", False))

    def request_force_stop(self, signum: int, frame: Any) -> None:
        """Remember a cold shutdown: a job that ends by it is interrupted, and has not failed."""
        try:
            super().request_force_stop(signum, frame)  # type: ignore[misc]
        except SystemExit:
            self._forced_stop = True
            raise

    # -- one job -----------------------------------------------------------------------------------------------------

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Run a job under its lock, or deal with a delivery that may not run now."""
        # A warm shutdown waits for a busy worker; an idle one it would stop with this delivery in its hands.
        self._state = WorkerStatus.BUSY
        if self.run_under_lock(job, queue):
            self.set_state(WorkerStatus.IDLE)
        else:
            self._state = WorkerStatus.IDLE

    def run_under_lock(self, job: Job, queue: Queue) -> bool:
        """Take the lock, run the job, give the lock back. False: this delivery may not run now."""
        run = self._start(job, queue)
        if run is None:
            return False
        self._denied_in_a_row = 0
        try:
            self.run_locked(run, job, queue)
        except (RunLostError, LockLostInterrupt):
            pass  # said below
        finally:
            try:
                self._finish(run, job, queue)
            finally:
                # Once the lock is given up, or lost, the job's next run may have begun in another greenlet here.
                if self.runs.get(job.id) is run:
                    del self.runs[job.id]
        return True

    def set_state(self, state: str, *args: Any, **kwargs: Any) -> None:
        """Set the worker's state; it stays busy until the lock is given back, so that no signal ends it before."""
        if state == WorkerStatus.IDLE and self.runs:
            return
        super().set_state(state, *args, **kwargs)  # type: ignore[misc]

    def run_locked(self, run: Run, job: Job, queue: Queue) -> None:
        """Let RQ run the job; override it to prepare the run."""
        super().execute_job(job, queue)  # type: ignore[misc]

    def cancel_run(self, run: Run, lost: LostLock) -> None:
        """Stop the run, in the cancel lane; called from any thread. Overrides do the stopping."""
        run.cancelled = True
        run.lost = run.lost or lost.reason != "held_too_long"

    def prepare_execution(self, job: Job, *args: Any, **kwargs: Any) -> Any:
        """Note RQ's record of the run: a loser removes its own and no other."""
        execution = super().prepare_execution(job, *args, **kwargs)  # type: ignore[misc]
        run = self.runs.get(job.id)
        if run is not None:
            run.execution = execution
        return execution

    def _start(self, job: Job, queue: Queue) -> Run | None:
        plugin = self.lock_plugin
        name = percent_encoded(queue.name)
        try:
            lock: Lock = plugin.pm.hook.echomq_job_start(
                queue=name,
                job_id=job.id,
                delivery=deliveries.delivery_of(job),
                payload=payload_of(job, queue),
                token=None,
            )
        except LockHeldError as denied:
            self._deny(denied, job, queue)
            return None
        except StartUndecidedError as undecided:
            self.log.error("Worker %s: %s", self.name, undecided)
            self._put_back(job, queue, at_front=True)
            self.pause_deliveries(plugin.options.denied_pause_ms)
            return None
        except BaseException:
            self._put_back(job, queue, at_front=True)
            raise
        key = QueueKeys(plugin.options.prefix, name).lock(job.id)
        run = Run(job.id, key, lock.token, plugin.options.lock_duration, os.getpid(), lock)
        self.runs[job.id] = run
        plugin.cancel_with(lock, lambda _, lost: self.cancel_run(run, lost))
        return run

    def _deny(self, denied: LockHeldError, job: Job, queue: Queue) -> None:
        try:
            if denied.same_delivery and deliveries.may_be_dropped(job):
                deliveries.drop(job, queue)
                self.log.info("Worker %s: job %s is running already, second delivery dropped", self.name, job.id)
                return
        except (RedisError, OSError) as error:
            self.log.error("Worker %s: a delivery of job %s cannot be dropped (%s)", self.name, job.id, error)
        self._put_back(job, queue, at_front=False)
        self.log.debug("Worker %s: job %s is running elsewhere, put back", self.name, job.id)
        self._denied_in_a_row += 1
        self.pause_deliveries(min(denied.retry_in_ms, SHORTEST_PAUSE_MS << min(self._denied_in_a_row - 1, 10)))

    def _put_back(self, job: Job, queue: Queue, *, at_front: bool) -> None:
        """Put a delivery back, and go on trying for as long as Redis gives no answer."""
        again = False
        while True:
            try:
                deliveries.put_back(job, queue, at_front=at_front, again=again)
            except (RedisError, OSError) as error:
                self.log.error("Worker %s: job %s cannot be put back yet (%s)", self.name, job.id, error)
                if self._forced_stop:
                    return
                again = True
                self.pause(self.lock_plugin.options.denied_pause_ms)
            else:
                return

    def pause(self, ms: int) -> None:
        """Let time pass between two tries."""
        time.sleep(ms / 1000)

    def pause_deliveries(self, ms: int) -> None:
        """Take no delivery for a while: the next one is likely the one that was just put back."""
        self.pause(ms)

    def _finish(self, run: Run, job: Job, queue: Queue) -> None:
        outcome = "interrupted" if run.lost else self._outcome(run, job, queue)
        if run.lost:
            self.log.warning("Worker %s: job %s lost its lock, nothing is written for this run", self.name, job.id)
        result = self.lock_plugin.pm.hook.echomq_job_finish(lock=run.lock, outcome=outcome)
        if run.lost or result is FinishResult.LOST:
            self._forget_execution(run, job)

    def _outcome(self, run: Run, job: Job, queue: Queue) -> Outcome:
        if run.completed:
            return "completed"
        # RQ has written by now. Where it could not, or Redis does not say, the entry stays for the sweep.
        try:
            status = deliveries.status_now(job)
            outcome = _OUTCOMES.get(status, "retry")
            if (
                status == JobStatus.QUEUED
                and run.lock is not None
                and not deliveries.came_again(job, run.lock.delivery)
            ):
                outcome = "interrupted"  # the run never began, and this delivery is the only one
            # A work-horse that finds its lock lost ends without a word: this worker asks as well.
            if outcome == "interrupted" and run.still_ours(self.connection) and self._forced_stop:
                self._forget_execution(run, job)
                requeue(job, queue)
                return "requeued"
        except (RedisError, OSError):
            return "interrupted"
        return outcome

    def _forget_execution(self, run: Run, job: Job) -> None:
        """Remove RQ's record of a run that leaves no result; other runs' records stay."""
        execution, run.execution = run.execution, None
        if execution is None:
            return
        executions = getattr(self, "executions", None)
        if isinstance(executions, dict):
            executions.pop(execution.id, None)
        else:
            self.execution = None
        try:
            with self.connection.pipeline() as pipeline:
                execution.delete(job=job, pipeline=pipeline)
                pipeline.execute()
        except (RedisError, OSError) as error:
            self.log.warning("Worker %s: the record of a run of job %s stays (%s)", self.name, job.id, error)
