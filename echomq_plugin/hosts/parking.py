"""Parking: taken items that cannot start, on their way to where they go instead, each in a small greenlet."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from echomq_plugin.errors import RedisCallError
from echomq_plugin.hosts.outage import Outage

MOST_PARKED: Final = 100
"""Items parked at once; while there are so many, none is taken. Else a list of copies would all be taken."""


class Parking:
    """
    Holds items for a pause, then moves them.

    Args:
        outage: says so when Redis does not answer.
        stopping: ends all pauses.
        forced: ends all repetitions.

    """

    def __init__(self, outage: Outage, stopping: Event, forced: Event) -> None:
        self._outage = outage
        self._stopping = stopping
        self._forced = forced
        self._places = BoundedSemaphore(MOST_PARKED)
        self._parked: dict[gevent.Greenlet[..., None], bytes] = {}

    def park(self, item: bytes, pause_ms: int, move: Callable[[], object]) -> None:
        """
        Move an item after a pause, and again until Redis answers. Switches greenlets while all places are taken.

        Args:
            item: the item.
            pause_ms: the pause, in ms.
            move: moves it; may raise RedisCallError.

        """
        self._places.acquire()
        greenlet = gevent.spawn(self._move, pause_ms, move)
        self._parked[greenlet] = item
        greenlet.rawlink(self._left)

    def greenlets(self) -> list[Any]:
        """Return the greenlets of all parked items."""
        return list(self._parked)

    def items(self) -> list[bytes]:
        """Return all parked items."""
        return list(self._parked.values())

    def _move(self, pause_ms: int, move: Callable[[], object]) -> None:
        self._stopping.wait(pause_ms / 1000)
        for attempt in itertools.count():
            try:
                move()
            except RedisCallError as error:
                if not self._outage.pause(error, attempt, self._forced):
                    return  # it stays taken, with neither lock nor entry: any worker's orphan watch will find it
            else:
                return

    def _left(self, greenlet: Any) -> None:
        del self._parked[greenlet]
        self._places.release()
