"""Calling a host's function with a time limit: in a greenlet where there is a hub, else in a native thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gevent

from echomq_plugin.errors import HookTimeLimitError
from echomq_plugin.native import NativeLock, allocate_lock, hub_of_this_thread, start_thread


class Caller(Protocol):
    """Runs one function at a time and gives up on it after a limit."""

    def call(self, function: Callable[[], Any], limit_ms: int) -> Any:
        """
        Return what ``function`` returns.

        Raises:
            HookTimeLimitError: it did not return in time. It may go on running; its result is dropped.
            BaseException: whatever it raised.

        """
        ...


class _Attempt:
    """The run of one function, with its result or its error."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # raised again where the caller waits
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class HubCaller:
    """Calls in a greenlet of this thread's hub, and kills it at the limit."""

    def call(self, function: Callable[[], Any], limit_ms: int) -> Any:
        """See ``Caller.call``. Switches greenlets."""
        attempt = _Attempt(function)
        greenlet = gevent.spawn(attempt.run)
        greenlet.join(limit_ms / 1000)
        if not greenlet.ready():
            greenlet.kill(block=False)
            raise HookTimeLimitError(limit_ms)
        return attempt.outcome()


class NativeCaller:
    """Calls in a native thread of its own, which is used again unless a function did not return in time."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None

    def call(self, function: Callable[[], Any], limit_ms: int) -> Any:
        """See ``Caller.call``. Blocks this native thread."""
        if self._worker is None:
            self._worker = _Worker()
        attempt = _Attempt(function)
        if not self._worker.run(attempt, limit_ms / 1000):
            # A native thread cannot be stopped: leave it behind, it ends when the function returns.
            self._worker.dismiss()
            self._worker = None
            raise HookTimeLimitError(limit_ms)
        return attempt.outcome()

    def close(self) -> None:
        """Let the thread end."""
        if self._worker is not None:
            self._worker.dismiss()
            self._worker = None


class _Worker:
    def __init__(self) -> None:
        self._go = _taken_lock()
        self._attempt: _Attempt | None = None
        self._done = _taken_lock()
        self._dismissed = False
        start_thread(self._loop)

    def run(self, attempt: _Attempt, limit_s: float) -> bool:
        self._attempt = attempt
        self._go.release()
        return self._done.acquire(True, limit_s)

    def dismiss(self) -> None:
        self._dismissed = True
        self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            attempt, self._attempt = self._attempt, None
            if attempt is None:
                break
            attempt.run()
            self._done.release()
            if self._dismissed:
                break
        destroy_hub_of_this_thread()


def destroy_hub_of_this_thread() -> None:
    """Free the hub that host code may have made in a native thread that is about to end."""
    hub = hub_of_this_thread()
    if hub is not None:
        hub.destroy(destroy_loop=True)


def _taken_lock() -> NativeLock:
    lock = allocate_lock()
    lock.acquire()
    return lock
