"""Schedule: when the next pass over the tracked locks is. Pure: every time is handed in, in ms."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

FIRST_RETRY_MS: Final = 500
"""The first repetition of a failed call comes after this, in ms; each further one after twice as long (DESIGN §5)."""

SHORTEST_RETRY_MS: Final = 100
"""However near a deadline is, no repetition comes sooner than this."""


def usual_jitter() -> float:
    """Return a factor near 1, so that workers that failed together do not come back together."""
    return random.uniform(0.9, 1.1)


def late_by(now: int, wake_at: int, tolerance_ms: int) -> int:
    """
    Return how late a pass is, in ms.

    A pass that overslept (the process was stopped, or its hub blocked) overslept the very ms for which it was to wake
    too: a lock whose deadline fell on it is judged by the server, which was not asked meanwhile, and not by the clock.

    Args:
        now: when it woke.
        wake_at: when it was to wake.
        tolerance_ms: up to this it is as good as on time.

    """
    late = max(0, now - wake_at)
    return late if late <= tolerance_ms else late + 1


class Schedule:
    """
    The next tick, the next retry, or the next deadline, whichever comes first.

    Args:
        interval: from the end of one tick to the next, in ms.
        now: the time, in ms.
        jitter: gives the factor of each pause before a retry.

    """

    def __init__(self, interval: int, now: int, jitter: Callable[[], float] = usual_jitter) -> None:
        self._interval = interval
        self._jitter = jitter
        self._next_tick = now + interval
        self._next_retry: int | None = None
        self._failures = 0

    def next_pass(self, deadline: int | None) -> int:
        """Return when the next pass is."""
        times = [self._next_tick, self._next_retry, deadline]
        return min(time for time in times if time is not None)

    def retry_soon(self, now: int) -> None:
        """Plan a retry unless one is planned: something failed outside of a pass."""
        if self._next_retry is None:
            self._next_retry = now + self._delay()

    def passed(self, now: int, *, failed: bool, deadline: int | None = None) -> int:
        """
        Take in a pass that has ended; the timer is re-armed after the pass's work (protocol).

        Args:
            now: the time, in ms.
            failed: a call gave no answer.
            deadline: when the first lock can no longer be trusted. A pause that would outlast it is cut to half of
                what is left: short lock durations have no room for the usual ones.

        Returns:
            how long it is to the next try, in ms.

        """
        if now >= self._next_tick:
            self._next_tick = now + self._interval
        if not failed:
            self._failures = 0
            self._next_retry = None
            return self._next_tick - now
        delay = self._delay()
        if deadline is not None and now < deadline <= now + delay:
            delay = min(delay, max(SHORTEST_RETRY_MS, (deadline - now) // 2))
        self._failures += 1
        self._next_retry = now + delay
        return min(delay, self._next_tick - now)

    def _delay(self) -> int:
        doubled = FIRST_RETRY_MS * 2 ** min(self._failures, 10)
        return max(1, min(self._interval, int(doubled * self._jitter())))
