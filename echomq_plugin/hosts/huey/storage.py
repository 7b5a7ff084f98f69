"""ReliableRedisStorage: a task stays in Redis until it has been dealt with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from huey.storage import RedisStorage
from redis.exceptions import TimeoutError as RedisTimeoutError

from echomq_plugin.connections import Connections
from echomq_plugin.errors import AttachError
from echomq_plugin.hosts.orphans import OrphanWatch
from echomq_plugin.hosts.reliable_list import ReliableList
from echomq_plugin.keys import QueueKeys
from echomq_plugin.native import allocate_lock
from echomq_plugin.scripts import Scripts

_DEFAULT_PAUSE_S: Final = 15.0


class ReliableRedisStorage(RedisStorage):
    """
    A ``RedisStorage`` whose tasks wait in a second list, ``<queue>:processing``, from their pop until they are done.

    ``Huey("app", storage_class=ReliableRedisStorage, url=…)``, and ``lock_tasks``: without locks nobody would know
    which of the taken tasks are lost. Needs Redis 6.2. A task that was taken by a worker that died before it could take
    the task's lock is put back by the others. Queues with priorities are another type of key, and are not covered.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.taken_key = f"{self.queue_key}:processing"
        self._in_hand: dict[int, bytes] = {}
        self._items: ReliableList | None = None
        self._watch: OrphanWatch | None = None
        self._looking = allocate_lock()
        self._pause_s = _DEFAULT_PAUSE_S
        self._next_look = 0.0

    def watch_orphans(
        self, connections: Connections, keys: QueueKeys, identify: Callable[[bytes], str], pause_s: float
    ) -> None:
        """Look for tasks that dead workers had only taken, every ``pause_s`` seconds. No I/O."""
        self._items = ReliableList(connections, self.queue_key)
        self._watch = OrphanWatch(self._items, Scripts(connections), keys, identify)
        self._pause_s = pause_s

    def dequeue(self) -> bytes | None:
        """Take the next task of this worker. Switches greenlets."""
        self.done()  # again, if Redis did not answer the last time
        self._look_for_orphans()
        wait = (self.read_timeout,) if self.blocking else ()
        command = "BLMOVE" if self.blocking else "LMOVE"
        try:
            item: bytes | None = self.conn.execute_command(
                command, self.queue_key, self.taken_key, "RIGHT", "LEFT", *wait
            )
        except RedisTimeoutError:
            return None
        if item is not None:
            self._in_hand[threading.get_ident()] = item
        return item

    def in_hand(self) -> bytes | None:
        """Return what this worker took last, while it has not been dealt with."""
        return self._in_hand.get(threading.get_ident())

    def done(self) -> None:
        """Forget the task that this worker has dealt with. Switches greenlets."""
        item = self.in_hand()
        if item is not None:
            self.conn.lrem(self.taken_key, 1, item)
            self.leave()

    def leave(self) -> None:
        """Leave the task that this worker has taken where it is: its entry, or the others, will bring it back."""
        self._in_hand.pop(threading.get_ident(), None)

    @property
    def is_watched(self) -> bool:
        """Whether ``watch_orphans`` was called."""
        return self._watch is not None

    def put_back(self, item: bytes) -> bool:
        """Put a taken task back, once. False: somebody has done so, or it was dealt with. Switches greenlets."""
        if self._items is None:
            raise AttachError("nobody watches this storage: call lock_tasks(huey) where the instance is made")
        self.leave()
        return self._items.put_back(item, run_next=True)

    def _look_for_orphans(self) -> None:
        if self._watch is None or time.monotonic() < self._next_look or not self._looking.acquire(False):
            return
        try:
            self._next_look = time.monotonic() + self._pause_s
            self._watch.look(lambda: frozenset(self._in_hand.values()))
        finally:
            self._looking.release()
