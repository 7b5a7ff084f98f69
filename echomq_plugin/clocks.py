"""The clock that renewal runs by: monotonic, and counting the time that the machine was suspended."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

import gevent

# CLOCK_MONOTONIC stands still while the machine sleeps and Redis' clock does not. macOS has no CLOCK_BOOTTIME, but
# its monotonic clock counts suspend by itself.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@runtime_checkable
class Clock(Protocol):
    """What may be passed as ``clock``: two methods, both in ms."""

    def now_ms(self) -> int:
        """Return the time in ms; only differences matter."""
        ...

    def wait(self, ms: int) -> None:
        """Let about ``ms`` pass, other greenlets running meanwhile. Returning early is harmless."""
        ...


class SystemClock:
    """The clock used when none is passed."""

    def now_ms(self) -> int:
        """Return ms of CLOCK_BOOTTIME, or of the monotonic clock where there is none."""
        return time.clock_gettime_ns(_CLOCK_ID) // 1_000_000

    def wait(self, ms: int) -> None:
        """Sleep in the caller's hub."""
        gevent.sleep(ms / 1000)
