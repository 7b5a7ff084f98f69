"""Run: one run of one message under its lock, in the worker thread or greenlet that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dramatiq.middleware import Interrupt, SkipMessage, TimeLimitExceeded

from echomq_plugin.events import Outcome
from echomq_plugin.interrupts import LockLostInterrupt, interrupt_for_this_run
from echomq_plugin.locks import Lock
from echomq_plugin.plugin import LockPlugin


class LockLost(LockLostInterrupt, Interrupt):
    """Raised inside an actor whose lock is lost. An ``Interrupt``, so that async actors are cancelled by it."""


class Run:
    """
    One run.

    Args:
        plugin: the library.
        lock: the run's lock.
        message: the message, as Dramatiq hands it to all hooks.
        lose: called once when the run turns out to be lost, to put its delivery back.

    Attributes:
        entered: whether the actor has been called.
        failed: whether the actor raised.
        retry_lost: whether enqueueing the message again was begun and came to nothing.

    """

    def __init__(self, plugin: LockPlugin, lock: Lock, message: Any, lose: Callable[[Run], None]) -> None:
        self.plugin = plugin
        self.lock = lock
        self.message = message
        self.entered = False
        self.failed = False
        self.retry_lost = False
        self._lose = lose

    def call(self, actor: Callable[[], Any]) -> Any:
        """
        Call the actor, and let its result out only under a lock that is still ours. Switches greenlets.

        Raises:
            SkipMessage: the lock is lost. Dramatiq's other middleware writes nothing for a message that is skipped.
            BaseException: what the actor raised, under a lock that is still ours.

        """
        self.entered = True
        interrupt = interrupt_for_this_run(LockLost)
        self.plugin.cancel_with(self.lock, lambda _, lost: interrupt.send(lost))
        try:
            try:
                result = actor()
            finally:
                interrupt.close()
        except LockLostInterrupt as interrupted:
            self._check()
            # Held for too long, by the user's own limit: Dramatiq has a name for that.
            raise TimeLimitExceeded(str(interrupted)) from None
        except BaseException:
            self._check()
            raise
        self._check()
        return result

    def finish(self, outcome: Outcome) -> None:
        """Give the lock back; again: no effect. Switches greenlets."""
        self.plugin.pm.hook.echomq_job_finish(lock=self.lock, outcome=outcome)

    def _check(self) -> None:
        if not self.lock.confirm_in_time(despite=(Interrupt,)):
            self._lose(self)
            raise SkipMessage(f"the lock of message {self.lock.job_id!r} is lost")
