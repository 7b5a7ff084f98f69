"""
A lane carries reports out of the renewal greenlet to where host code may run: the host's hub, or a native thread.

What the host's hub has not taken within a second goes to the native thread, exactly once: a callback sent to a hub that
sits in a native wait, has ended or is destroyed runs nothing and says nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import gevent
from gevent import get_hub

from echomq_plugin.callers import Caller, HubCaller, NativeCaller, destroy_hub_of_this_thread
from echomq_plugin.native import allocate_lock, hub_of_this_thread, native_sleep, pause, start_thread, uses_gevent

HUB_MAY_TAKE_S = 1.0
"""How long the host's hub may leave a report lying before the native thread takes it."""

T = TypeVar("T")


class Lane(Generic[T]):
    """
    One queue of reports, worked off one at a time by whichever side takes them.

    Args:
        handle: deals with one report; gets the caller that runs host code with a limit. What it raises is dropped, so
            it has to log for itself.
        most_waiting: once so many reports wait, those that ``droppable`` names are dropped.
        droppable: tells which reports may be dropped; none by default.

    """

    def __init__(
        self,
        handle: Callable[[T, Caller], None],
        *,
        most_waiting: int = 1_000,
        droppable: Callable[[T], bool] = lambda _: False,
    ) -> None:
        self._handle = handle
        self._most_waiting = most_waiting
        self._droppable = droppable
        self._lock = allocate_lock()
        self._wake = allocate_lock()
        self._wake.acquire()
        self._waiting: deque[tuple[float, T]] = deque()
        self._busy = 0
        self._hub: Any = None
        self._watcher: Any = None
        self._draining = False
        self._thread_runs = False
        self._stopping = False
        self.dropped = 0

    def use_this_hub(self) -> None:
        """Let the hub of the calling thread take reports, as long as it turns. Called from the host's hub."""
        hub = get_hub()
        with self._lock:
            if self._hub is hub and self._watcher is not None:
                return
            watcher: Any = hub.loop.async_(ref=False)
            watcher.start(self._on_hub)
            self._hub, self._watcher = hub, watcher

    def use_this_hub_if_any(self) -> None:
        """As ``use_this_hub`` where the calling thread waits through gevent; else the native thread does it all."""
        if uses_gevent():
            self.use_this_hub()

    def post(self, report: T) -> None:
        """Hand a report over. Callable from any native thread; never blocks on host code, logs or raises."""
        with self._lock:
            if len(self._waiting) >= self._most_waiting and self._droppable(report):
                self.dropped += 1
                return
            self._waiting.append((time.monotonic(), report))
            start, self._thread_runs = not self._thread_runs, True
            if self._watcher is not None:
                try:
                    self._watcher.send()
                except Exception:
                    # The host's hub is destroyed.
                    self._watcher = None
        if start:
            self._stopping = False
            try:
                start_thread(self._run_natively)
            except Exception:
                # No more threads to be had: the hub may take the report, and the next post tries again.
                with self._lock:
                    self._thread_runs = False
        self._wake_thread()

    def drain(self, timeout_s: float, *, on_hub: bool) -> bool:
        """Wait until nothing is left to do; True when so. ``on_hub``: the caller's hub may turn meanwhile."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            with self._lock:
                if not self._waiting and not self._busy:
                    return True
            (pause if on_hub else native_sleep)(0.005)
        return False

    def finish(self) -> None:
        """Deliver what waits, within a second or two, and stop."""
        self.drain(2 * HUB_MAY_TAKE_S, on_hub=uses_gevent())
        self.stop()

    def stop(self) -> None:
        """Let the native thread end once nothing is left; a later ``post`` starts it anew."""
        self._stopping = True
        with self._lock:
            # Only its own hub may close a watcher; left open, each start and stop of a plugin would leave one behind.
            ours = self._hub is not None and self._hub is hub_of_this_thread()
            watcher, self._watcher = (self._watcher, None) if ours else (None, self._watcher)
        if watcher is not None:
            watcher.stop()
            watcher.close()
        self._wake_thread()

    def _wake_thread(self) -> None:
        try:
            self._wake.release()
        except RuntimeError:
            pass  # it is awake already

    def _take(self, *, for_hub: bool) -> tuple[list[T], float | None]:
        """Take the next report, if there is one to take; and say in how many seconds to look again (None: if woken)."""
        with self._lock:
            if not self._waiting:
                return [], None
            if not for_hub and self._watcher is not None:
                left = self._waiting[0][0] + HUB_MAY_TAKE_S - time.monotonic()
                if left > 0:
                    return [], left
            self._busy += 1
            return [self._waiting.popleft()[1]], 0

    def _deal_with(self, report: T, caller: Caller) -> None:
        try:
            self._handle(report, caller)
        except Exception:
            pass  # `handle` logs; the next report must not wait for a host's mistake
        finally:
            with self._lock:
                self._busy -= 1

    def _on_hub(self) -> None:
        if not self._draining:
            self._draining = True
            gevent.spawn(self._drain_on_hub)

    def _drain_on_hub(self) -> None:
        caller = HubCaller()
        try:
            while taken := self._take(for_hub=True)[0]:
                self._deal_with(taken[0], caller)  # switches greenlets
        finally:
            self._draining = False

    def _run_natively(self) -> None:
        caller = NativeCaller()
        while True:
            taken, look_again_s = self._take(for_hub=False)
            if taken:
                self._deal_with(taken[0], caller)
                continue
            with self._lock:
                if self._stopping and not self._waiting:
                    self._thread_runs = False
                    break
            self._wake.acquire(True, -1 if look_again_s is None else look_again_s)
        caller.close()
        destroy_hub_of_this_thread()
