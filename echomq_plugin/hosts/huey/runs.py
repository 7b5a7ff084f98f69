"""Run: one run of one task under its lock, in the worker that runs it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Protocol

from huey import exceptions

from echomq_plugin.events import LostLock, Outcome
from echomq_plugin.interrupts import LockLostInterrupt, interrupt_for_this_run
from echomq_plugin.locks import Lock
from echomq_plugin.native import allocate_lock, native_sleep
from echomq_plugin.plugin import LockPlugin

_HANDLER_LIMIT_S = 0.1

TIMEOUTS: tuple[type[Exception], ...] = (exceptions.TaskTimeout,) if hasattr(exceptions, "TaskTimeout") else ()
"""What Huey raises when a task has run for too long: from Huey 3 on."""


class RunLost(BaseException):
    """
    Raised out of a task whose lock is lost.

    Not an ``Exception``: Huey then stores no result, calls no hook and enqueues neither retry nor next task.
    """


class Interrupts(Protocol):
    """Something that stops the run in this worker."""

    def send(self, lost: LostLock) -> None:
        """Stop the run. Callable from any native thread."""
        ...

    def close(self) -> None:
        """Stop nothing from now on."""
        ...


class ProcessInterrupt:
    """
    Sends the process the signal by which Huey interrupts the running task of a worker process.

    Unlike what can be raised between two bytecodes, it ends waits too.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = allocate_lock()
        self._open = True
        self._sent = False
        self.lost: LostLock | None = None

    def send(self, lost: LostLock) -> None:
        """See ``Interrupts``."""
        with self._lock:
            if self._open and not self._sent:
                self._sent = True
                self.lost = lost
                os.kill(os.getpid(), self._number)

    def close(self) -> None:
        """See ``Interrupts``. The signal's handler may have yet to run: it must not hit what comes next."""
        with self._lock:
            self._open = False
        if self._sent:
            try:
                native_sleep(_HANDLER_LIMIT_S)
            except KeyboardInterrupt:
                pass


def interrupts_of_this_worker() -> Interrupts:
    """Return what stops the run that the caller is about to begin: greenlet, thread or process."""
    if multiprocessing.parent_process() is not None and threading.current_thread() is threading.main_thread():
        # Huey ignores one of the two in its worker processes, and interrupts the task at the other.
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(signal.getsignal(number)) and signal.getsignal(number) is not signal.default_int_handler:
                return ProcessInterrupt(number)
    return interrupt_for_this_run()


class Run:
    """
    One run.

    Args:
        plugin: the library.
        lock: the run's lock.
        task: Huey's task.
        payload: the task as it was taken.

    Attributes:
        failed: whether the task raised.
        retrying: whether Huey is about to enqueue the task again.
        interrupted: whether the worker was told to end in the middle of the task.

    """

    def __init__(self, plugin: LockPlugin, lock: Lock, task: Any, payload: bytes) -> None:
        self.plugin = plugin
        self.lock = lock
        self.task = task
        self.payload = payload
        self.failed = False
        self.retrying = False
        self.interrupted = False

    def execute(self, function: Callable[[], Any]) -> Any:
        """
        Run the task's function in Huey's place, and let its result out only under a lock that is still ours.

        Raises:
            RunLost: the lock is lost.
            BaseException: what the task raised, under a lock that is still ours.

        """
        try:
            return self._execute(function)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        except RunLost:
            raise
        except BaseException:
            self.failed = True
            raise

    def _execute(self, function: Callable[[], Any]) -> Any:
        interrupt = interrupts_of_this_worker()
        self.plugin.cancel_with(self.lock, lambda _, lost: interrupt.send(lost))
        try:
            try:
                result = function()
            finally:
                interrupt.close()
        except (LockLostInterrupt, KeyboardInterrupt) as interrupted:
            lost = interrupted.lost if isinstance(interrupted, LockLostInterrupt) else getattr(interrupt, "lost", None)
            if lost is None:
                raise  # the worker was told to end
            self._check()
            # Held for too long, by the user's own limit: as if the task had given up. Its retries count.
            raise exceptions.CancelExecution from None
        except BaseException:
            self._check()
            raise
        self._check()
        return result

    def finish(self, outcome: Outcome) -> None:
        """Give the lock back; again: no effect. Switches greenlets."""
        self.plugin.pm.hook.echomq_job_finish(lock=self.lock, outcome=outcome)

    def outcome(self) -> Outcome:
        """Tell how a run ended that Huey has dealt with."""
        if self.retrying:
            return "retry"
        return "failed" if self.failed else "completed"

    def _check(self) -> None:
        if not self.lock.confirm_in_time(despite=TIMEOUTS):
            raise RunLost(self.lock.job_id)
