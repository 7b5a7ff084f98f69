"""FakeClock: time passes when the test says so."""

from __future__ import annotations

from gevent import get_hub, getcurrent, sleep
from gevent.event import Event

LOOK_AGAIN_S = 0.01
"""A wait ends after this even if no time passes, so that whoever waits notices that it has been told to stop."""

SETTLE_S = 10.0
"""How long ``advance`` gives those that it wakes to do their work."""


class FakeClock:
    """
    A clock for ``attach(…, clock=…)`` and ``LockManager(…, clock=…)``: it stands still until ``advance``.

    For greenlets of one hub. A manager with a clock of its own runs in the hub of its caller.

    Args:
        now_ms: the time to begin with, in ms.

    """

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self._now = now_ms
        self._moved = Event()
        # Of each greenlet that has ever waited: how many of its waits have begun, and whether it is in one.
        self._waits: dict[object, int] = {}
        self._in_wait: set[object] = set()

    def now_ms(self) -> int:
        """Return the time in ms."""
        return self._now

    def wait(self, ms: int) -> None:
        """Wait until ``ms`` have passed, or a moment of real time. Switches greenlets."""
        me = getcurrent()
        until = self._now + ms
        self._waits[me] = self._waits.get(me, 0) + 1
        self._in_wait.add(me)
        try:
            if self._now < until:
                self._moved.wait(LOOK_AGAIN_S)
        finally:
            self._in_wait.discard(me)

    def advance(self, ms: int) -> None:
        """
        Let ``ms`` pass at once, and return when all greenlets that waited have done their work and wait again.

        A test that wants a tick at its right time advances tick by tick; one big step is a process that slept.
        Switches greenlets.
        """
        if ms < 0:
            raise ValueError(f"ms={ms}: time only goes forward, advance by 0 or more")
        sleep(0)  # whoever was just started gets to its first wait
        woken = {greenlet: self._waits[greenlet] for greenlet in self._in_wait}
        self._now += ms
        moved, self._moved = self._moved, Event()
        moved.set()
        until = get_hub().loop.now() + SETTLE_S
        while any(self._still_works(greenlet, waits) for greenlet, waits in woken.items()):
            if get_hub().loop.now() > until:
                raise TimeoutError(f"whoever waited on this clock still works after {SETTLE_S} s")
            sleep(0.001)

    def _still_works(self, greenlet: object, waits: int) -> bool:
        waits_again = greenlet in self._in_wait and self._waits[greenlet] > waits
        return not waits_again and not getattr(greenlet, "dead", False)
