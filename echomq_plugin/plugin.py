"""LockPlugin: the library's side of the hook chain, one per worker process and plugin manager."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
import pluggy

from echomq_plugin.boots import Boots
from echomq_plugin.callers import Caller
from echomq_plugin.clocks import Clock, SystemClock
from echomq_plugin.connections import Connections
from echomq_plugin.errors import (
    LockLostError,
)
from echomq_plugin.events import FinishResult, JobsFoundDead, LocksLost, Outcome
from echomq_plugin.hooks_check import check_hooks
from echomq_plugin.interrupts import GreenletInterrupt, LockLostInterrupt
from echomq_plugin.job_locks import Cancel, JobLocks
from echomq_plugin.keys import QueueKeys, key_part
from echomq_plugin.lock_manager import LockManager
from echomq_plugin.locks import Lock
from echomq_plugin.log import log_patching, log_warnings
from echomq_plugin.options import LockOptions, checked_options
from echomq_plugin.recovery import Recovery
from echomq_plugin.reports import Reports, Side
from echomq_plugin.scripts import Scripts
from echomq_plugin.server_check import check_hash_tags, check_server
from echomq_plugin.stalled import StalledChecker
from echomq_plugin.sweep_scripts import SweepScripts


class LockPlugin:
    """
    Takes a lock for each job that starts, keeps it, gives it back, and brings back the jobs of workers that died.

    Made by ``attach``. One for each plugin manager; every process that uses it has its own renewal greenlet, tracked
    locks and connections, also after a fork.

    Args:
        pm: the plugin manager whose hooks are called.
        connection: see ``LockManager``.
        queue: the first queue; ``plugin.job`` runs jobs of it.
        options: durations and limits.
        cancel: the host's own way to stop a job whose lock is lost, called with the Lock and its LostLock in the
            cancel lane; must be safe from any thread. ``cancel_with`` names one for a single job.
        clock: see ``LockManager``.
        side: where hooks run, see ``Reports``.

    """

    def __init__(
        self,
        pm: pluggy.PluginManager,
        connection: object,
        queue: str,
        options: LockOptions,
        *,
        cancel: Cancel | None = None,
        clock: Clock | None = None,
        side: Side = "auto",
    ) -> None:
        self.pm = pm
        self.options = options
        self._host = socket.gethostname()
        self.connections = Connections(connection, call_limit_ms=checked_options(options).call_limit)
        self.sweep_scripts = SweepScripts(self.connections)
        self.reports = Reports(
            pm, cancel=self._cancel_jobs, recover=self._recover, hook_limit_ms=options.hook_limit_ms, side=side
        )
        now_ms = (clock or SystemClock()).now_ms
        self.checker = StalledChecker(
            self.sweep_scripts,
            prefix=options.prefix,
            worker=self.worker_name,
            stalled_interval=options.stalled_interval,
            now_ms=now_ms,
            outbox=self.reports.post,
            serves=self._serves,
            own_queues=self._own_queues,
        )
        self.manager = LockManager(
            self.connections,
            queue,
            options=options,
            clock=clock,
            outbox=self.reports.post,
            companions=(self.checker.run,),
        )
        self._recovery = Recovery(
            pm,
            self.sweep_scripts,
            options=options,
            now_ms=now_ms,
            outbox=self.reports.post,
            nobody_put_back=self.checker.leave_to_others,
        )
        self.queues: list[str] = [queue]
        self._known_queues: set[tuple[int, str]] = set()
        self._started_pids: set[int] = set()
        self._boots = Boots()
        self.jobs = JobLocks(
            self.manager,
            Scripts(self.connections),
            options=options,
            worker=self.worker_name,
            boot=self._boot,
            cancel=cancel,
        )

    # -- life of the worker ------------------------------------------------------------------------------------------

    def worker_name(self) -> str:
        """Return what this process calls itself in entries, for people who look."""
        return f"{self._host}:{os.getpid()}"

    def add_queue(self, queue: str) -> None:
        """Serve one more queue. No I/O."""
        name = key_part("queue", queue)
        if name not in self.queues:
            self.queues.append(name)

    def start(self) -> None:
        """
        Boot this process: check hooks and server, make the queues known, begin to renew and to sweep.

        Called at worker boot, or by the first job. Again: no effect. Switches greenlets.

        Raises:
            AttachError: a plugin's hooks would not work, or would let jobs run unlocked.
            RedisCallError: Redis does not answer; nothing is started.
            ServerUnsuitableError: Redis cannot do what is needed; nothing is started.

        """
        if os.getpid() not in self._started_pids:
            self._boots.run(self._start)

    def _start(self) -> None:
        pid = os.getpid()
        if pid in self._started_pids:
            return
        check_hooks(self.pm)
        report = check_server(self.connections, [QueueKeys(self.options.prefix, queue) for queue in self.queues])
        log_warnings("server unsafe", report.warnings)
        log_warnings("options unsafe", self.options.warnings)
        for queue in self.queues:
            self._make_known(queue)
        log_patching(self.options.dedicated_hub)
        self.reports.open()
        self.manager.start()
        self._started_pids.add(pid)

    def stop(self, timeout_ms: int | None = None) -> bool:
        """
        End this process' part: wait for the running jobs, renewing all the while, then stop. Switches greenlets.

        Args:
            timeout_ms: how long to wait for jobs, in ms; None: until the last one has ended. The lock of a job that
                still runs then is left to run out by itself.

        Returns:
            whether every job had ended and every release was answered.

        """
        pid = os.getpid()
        if pid not in self._started_pids:
            return True
        idle = self.manager.wait_until_idle(timeout_ms)
        # First: a job that starts from here on starts this process' part anew.
        self._started_pids.discard(pid)
        try:
            self.manager.stop()
            self.reports.close()
        except BaseException:
            self._started_pids.add(pid)  # interrupted: it may be called again
            raise
        self.connections.drop_idle()
        return idle

    def detach(self, pm: pluggy.PluginManager) -> None:
        """Take the library's implementations out of a plugin manager. Jobs that run keep their locks until ``stop``."""
        from echomq_plugin.attach import unregister

        unregister(pm)

    # -- life of a job -----------------------------------------------------------------------------------------------

    def job_start(
        self,
        queue: str,
        job_id: object,
        delivery: str | None = None,
        payload: bytes | str | None = None,
        token: object | None = None,
    ) -> Lock:
        """Take the lock of a job and track it; see ``JobLocks.start``. Switches greenlets."""
        return self.jobs.start(queue, job_id, delivery, payload, token)

    def job_finish(self, lock: Lock, outcome: Outcome) -> FinishResult:
        """Give the lock of a job back; see ``JobLocks.finish``. Switches greenlets."""
        return self.jobs.finish(lock, outcome)

    def cancel_with(self, lock: Lock, cancel: Cancel) -> None:
        """Name the way to stop one job, should its lock be lost; see ``JobLocks.cancel_with``."""
        self.jobs.cancel_with(lock, cancel)

    @contextmanager
    def job(
        self,
        job_id: object,
        *,
        queue: str | None = None,
        delivery: str | None = None,
        payload: bytes | str | None = None,
        token: object | None = None,
    ) -> Iterator[Lock]:
        """
        Run a block under the lock of a job, for apps without a queue library.

        Should the lock be lost, ``LockLostInterrupt`` is raised inside the block and ``LockLostError`` out of it. An
        ``Exception`` counts as failed; a greenlet that is killed, or a process that is told to exit, as interrupted.

        Args:
            job_id: text, an int or ASCII bytes.
            queue: another queue than the first that was attached.
            delivery: see ``echomq_job_start``.
            payload: likewise.
            token: likewise.

        Raises:
            LockHeldError, StartUndecidedError: the block was not run.
            LockLostError: the lock was lost, so another run may own the job.

        """
        lock = self.job_start(queue or self.manager.queue, job_id, delivery, payload, token)
        interrupt = GreenletInterrupt()
        self.cancel_with(lock, lambda _, lost: interrupt.send(lost))
        outcome: Outcome = "interrupted"
        try:
            yield lock
            outcome = "completed"
        except LockLostInterrupt as lost:
            raise LockLostError(lock.queue, lock.job_id, lost.lost) from None
        except (Exception, gevent.Timeout):
            outcome = "failed"
            raise
        finally:
            interrupt.close()
            result = self.job_finish(lock, outcome)
        if result is FinishResult.LOST:
            raise LockLostError(lock.queue, lock.job_id, lock.lost)

    # -- what the lanes call -----------------------------------------------------------------------------------------

    def _cancel_jobs(self, report: LocksLost, caller: Caller) -> None:
        self.jobs.cancel_jobs(report, caller)

    def _recover(self, found: JobsFoundDead, caller: Caller) -> None:
        self._recovery.recover(found, caller)

    def _serves(self, queue: str) -> bool:
        return queue in self.queues or (os.getpid(), queue) in self._known_queues

    def _boot(self, queue: str) -> None:
        self.start()
        self._make_known(queue)

    def _own_queues(self) -> list[str]:
        # Copied in one go: other threads add to it.
        return [queue for pid, queue in list(self._known_queues) if pid == os.getpid()]

    def _make_known(self, queue: str) -> None:
        known = (os.getpid(), queue)
        if known not in self._known_queues:
            check_hash_tags(self.connections, [QueueKeys(self.options.prefix, queue)])
            self.sweep_scripts.add_queue(self.options.prefix, queue)  # switches greenlets
            self._known_queues.add(known)
