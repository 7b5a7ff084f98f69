"""
Native threads and locks, whether or not gevent has patched the standard library.

Looked up at each call and never at import: this package may be imported before ``monkey.patch_all()``.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol, cast

from gevent import monkey
from gevent._hub_local import get_hub_if_exists
from gevent.hub import Hub

_SIGNALS = signal.valid_signals()


class NativeLock(Protocol):
    """What ``_thread.allocate_lock`` gives."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; ``timeout`` is in seconds."""
        ...

    def release(self) -> None:
        """Let go; any thread may."""
        ...

    def __enter__(self) -> bool: ...

    def __exit__(self, *_: object) -> None: ...


def allocate_lock() -> NativeLock:
    """Return a lock of the operating system, never gevent's: it may be shared by two hubs."""
    return cast("NativeLock", monkey.get_original("_thread", "allocate_lock")())


def thread_id() -> int:
    """Return the identity of the native thread that runs this, not of the greenlet."""
    return cast("int", monkey.get_original("_thread", "get_ident")())


def native_sleep(seconds: float) -> None:
    """Block this native thread, and its hub if it has one."""
    monkey.get_original("time", "sleep")(seconds)


def start_thread(body: Callable[[], None]) -> None:
    """
    Start a native thread that no ``threading`` function knows of: it never keeps the process alive.

    All signals are blocked in it, so that none interrupts a call there.
    """

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        # Threads started below `threading` are invisible to coverage and debuggers without this.
        trace = threading.gettrace()
        if trace is not None:
            sys.settrace(trace)
        body()

    monkey.get_original("_thread", "start_new_thread")(run, ())


def uses_gevent() -> bool:
    """Tell whether code on this native thread should wait through a gevent hub."""
    return monkey.is_module_patched("socket") or get_hub_if_exists() is not None


def hub_of_this_thread() -> Hub | None:
    """Return the hub of this native thread without making one."""
    return get_hub_if_exists()


def pause(seconds: float) -> None:
    """Let time pass in the caller's own way: its hub turns if it has one."""
    hub = hub_of_this_thread()
    if hub is not None or monkey.is_module_patched("time"):
        import gevent

        gevent.sleep(seconds)
    else:
        time.sleep(seconds)
