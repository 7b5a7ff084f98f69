"""
Where greenlets of the library run: on a hub of their own in a native thread, or on the caller's hub.

Nothing of gevent is shared between hubs. What crosses threads is a native lock and an ``async_`` watcher, which is the
one thing of an event loop that other threads may touch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import gevent
from gevent import get_hub
from gevent.hub import Waiter

from echomq_plugin.native import NativeLock, allocate_lock, pause, start_thread

EXIT_JOIN_S = 2.0
_POLL_S = 0.005
_LONGEST_CLOCK_WAIT_MS = 60_000


class Abort(BaseException):
    """Thrown into a greenlet of the library to end it in the middle of a call. Not an error: nothing must catch it."""


class Signal:
    """
    Wakes the one greenlet that waits on it, from any native thread. Made and waited on in one hub.

    Args:
        keep_loop_alive: whether the wait counts as work of the hub. False on a hub of the app's, so that an idle
            library never keeps a process alive.

    """

    def __init__(self, *, keep_loop_alive: bool) -> None:
        self._hub = get_hub()
        self._ref = keep_loop_alive
        self._set = False
        self._waiter: Waiter[None] | None = None
        self._watcher: Any = self._hub.loop.async_(ref=keep_loop_alive)
        self._watcher.start(self._fired)

    def send(self) -> None:
        """Wake the waiter; if nobody waits, the next wait returns at once. Callable from any native thread."""
        self._watcher.send()

    def wait(self, timeout_ms: int | None) -> None:
        """Wait for ``send`` or for the time to pass; None: for ever. Switches greenlets."""
        if not self._set and (timeout_ms is None or timeout_ms > 0):
            waiter: Waiter[None] = Waiter(self._hub)
            self._waiter = waiter
            timer = None
            try:
                if timeout_ms is not None:
                    timer = self._hub.loop.timer(timeout_ms / 1000, ref=self._ref)
                    timer.start(waiter.switch, None)
                waiter.get()
            finally:
                self._waiter = None
                if timer is not None:
                    timer.stop()
                    timer.close()
        self._set = False

    def close(self) -> None:
        """Free the watcher; only from the hub that made it."""
        self._watcher.stop()
        self._watcher.close()

    def _fired(self) -> None:
        self._set = True
        if self._waiter is not None:
            self._waiter.switch(None)


class Task:
    """
    One long-lived greenlet of the library.

    Args:
        body: runs in the greenlet until ``stopping``; waits only through ``wait``.
        clock_wait: the ``wait`` of a clock that was passed in, which then decides how time passes for the body.

    """

    def __init__(self, body: Callable[[Task], None], clock_wait: Callable[[int], None] | None = None) -> None:
        self.stopping = False
        self._body = body
        self._clock_wait = clock_wait
        self._lock = allocate_lock()
        self._signal: Signal | None = None
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def wake(self) -> None:
        """Make the current or the next ``wait`` return. Callable from any native thread."""
        with self._lock:
            if self._signal is not None:
                self._signal.send()

    def wait(self, timeout_ms: int | None) -> None:
        """Wait until woken or until the time has passed. Called by the body; switches greenlets."""
        if self._clock_wait is not None:
            self._clock_wait(_LONGEST_CLOCK_WAIT_MS if timeout_ms is None else timeout_ms)
            gevent.sleep(0)  # a clock that only counts must not keep the hub to itself
        elif self._signal is not None and not self.stopping:
            self._signal.wait(timeout_ms)

    def spawn(self, *, keep_loop_alive: bool) -> gevent.Greenlet[[], None]:
        """Start the greenlet in the hub of this thread."""
        signal = Signal(keep_loop_alive=keep_loop_alive)
        with self._lock:
            self._signal = signal
        self._greenlet = gevent.spawn(self._run)
        return self._greenlet

    def abort(self) -> None:
        """End the greenlet wherever it waits; only from its own hub."""
        if self._greenlet is not None:
            self._greenlet.kill(Abort, block=False)

    def _run(self) -> None:
        try:
            self._body(self)
        except Abort:
            pass
        finally:
            with self._lock:
                signal, self._signal = self._signal, None
            if signal is not None:
                signal.close()


class HubRunner(Protocol):
    """Runs tasks on some hub."""

    def start(self) -> None:
        """Start the tasks."""
        ...

    def stop(self) -> bool:
        """Ask the tasks to end and wait for them for two seconds at the most; True when they did."""
        ...

    def stop_at_exit(self) -> None:
        """End the tasks before the interpreter goes, without help from the caller's hub."""
        ...


class DedicatedHub:
    """
    A hub of our own, in a native thread: a job that burns CPU or blocks the app's hub does not hold it up.

    That thread calls no logging, hook or host code, and imports nothing: locks of handlers and of modules would tie it
    to the app's hub.
    """

    def __init__(self, tasks: list[Task], cleanup: Callable[[], None]) -> None:
        self._tasks = tasks
        self._cleanup = cleanup
        self._lock: NativeLock = allocate_lock()
        self._done: NativeLock = allocate_lock()
        self._abort_signal: Any = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start the thread. It never keeps a process alive."""
        get_hub_class_ready()
        self._pid = os.getpid()
        self._done.acquire()
        try:
            start_thread(self._main)
        except BaseException:
            self._done.release()
            raise

    def stop(self) -> bool:
        """Ask the tasks to end and wait for the thread; the caller's hub turns meanwhile."""
        self._ask_to_stop()
        waited = 0.0
        while waited < EXIT_JOIN_S:
            if self._ended(0):
                return True
            pause(_POLL_S)
            waited += _POLL_S
        self._abort()
        return self._ended(EXIT_JOIN_S)

    def stop_at_exit(self) -> None:
        """
        Join the thread before the interpreter goes.

        Leaving with the thread alive ends some processes by SIGSEGV. The caller's hub may be gone: wait natively.
        A child of the process that started it has inherited the call, but not the thread.
        """
        if self._pid != os.getpid():
            return
        self._ask_to_stop()
        if not self._ended(EXIT_JOIN_S / 4):
            self._abort()
            self._ended(EXIT_JOIN_S)

    def _ask_to_stop(self) -> None:
        for task in self._tasks:
            task.stopping = True
            task.wake()

    def _ended(self, timeout_s: float) -> bool:
        if self._pid is None:
            return True
        if not self._done.acquire(True, timeout_s):
            return False
        self._done.release()
        return True

    def _abort(self) -> None:
        with self._lock:
            if self._abort_signal is not None:
                self._abort_signal.send()

    def _main(self) -> None:
        hub = get_hub()
        try:
            watcher = hub.loop.async_(ref=False)
            watcher.start(self._abort_tasks)
            with self._lock:
                self._abort_signal = watcher
            greenlets = [task.spawn(keep_loop_alive=True) for task in self._tasks]
            for task in self._tasks:
                # `stop` may have come before there was anything to wake.
                if task.stopping:
                    task.wake()
            gevent.joinall(greenlets)
            self._cleanup()
            with self._lock:
                self._abort_signal = None
            watcher.stop()
            watcher.close()
        finally:
            hub.destroy(destroy_loop=True)
            self._done.release()

    def _abort_tasks(self) -> None:
        for task in self._tasks:
            task.abort()


class CallersHub:
    """The hub of the thread that calls ``start``: simplest, and starved by whatever keeps that hub busy."""

    def __init__(self, tasks: list[Task], cleanup: Callable[[], None]) -> None:
        self._tasks = tasks
        self._cleanup = cleanup
        self._greenlets: list[gevent.Greenlet[[], None]] = []

    def start(self) -> None:
        """Spawn the tasks on the hub of this thread."""
        self._greenlets = [task.spawn(keep_loop_alive=False) for task in self._tasks]

    def stop(self) -> bool:
        """Ask the tasks to end and wait for them; called from the hub they run on."""
        for task in self._tasks:
            task.stopping = True
            task.wake()
        gevent.joinall(self._greenlets, timeout=EXIT_JOIN_S)
        for task in self._tasks:
            task.abort()
        gevent.joinall(self._greenlets, timeout=EXIT_JOIN_S)
        self._cleanup()
        return all(greenlet.ready() for greenlet in self._greenlets)

    def stop_at_exit(self) -> None:
        """Nothing to join: the greenlets end with the hub."""


def get_hub_class_ready() -> None:
    """
    Import, in the calling thread, all that a new hub and its first connection would import in theirs.

    Two hubs that import one module at once hang for good: the module's lock is a lock of one of them.
    """
    import encodings.idna
    import encodings.utf_8  # noqa: F401

    import gevent.resolver.thread
    import gevent.socket
    import gevent.threadpool

    "localhost".encode("idna")
    gevent.config.resolver  # noqa: B018  # resolving the setting imports the resolver
    gevent.config.threadpool  # noqa: B018
    gevent.config.loop  # noqa: B018
