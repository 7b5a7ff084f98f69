"""TakenTasks: tells a reliable storage what has become of the task that each worker has taken."""

from __future__ import annotations

import datetime
import hashlib
import logging
import threading
from typing import Any

from redis.exceptions import RedisError

from echomq_plugin.errors import RedisCallError
from echomq_plugin.hosts.huey.storage import ReliableRedisStorage
from echomq_plugin.keys import QueueKeys
from echomq_plugin.log import log_event
from echomq_plugin.plugin import LockPlugin

NO_ANSWER = (RedisError, RedisCallError, OSError)
"""What Huey and the library raise where Redis gives no answer."""


class TakenTasks:
    """
    The tasks that the workers of this process have taken. With another storage Huey has forgotten them already.

    Args:
        huey: the instance.
        plugin: the library.
        queue: the queue of the locks.

    """

    def __init__(self, huey: Any, plugin: LockPlugin, queue: str) -> None:
        self._huey = huey
        self._plugin = plugin
        self._queue = queue
        self._execute = huey.execute
        # Native threads or greenlets that are inside of `execute`, and those whose taken task has begun.
        self._inside: set[int] = set()
        self._begun: set[int] = set()

    def execute(self, task: Any, timestamp: Any = None) -> Any:
        """Do what Huey does with a task, and forget it once it has been dealt with; in the place of Huey's method."""
        storage = self._storage()
        worker = threading.get_ident()
        if storage is None or worker in self._inside:
            return self._execute(task, timestamp)
        self._inside.add(worker)
        try:
            value = self._execute(task, timestamp)
        except NO_ANSWER:
            # Huey could not ask whether the task is revoked, or not schedule it: it has not been dealt with.
            storage.leave()
            raise
        except Exception:
            storage.done()
            raise
        except BaseException:
            storage.leave()
            raise
        finally:
            self._inside.discard(worker)
            self._begun.discard(worker)
        storage.done()
        return value

    def payload(self, task: Any) -> bytes:
        """Return a task that begins, as it was taken."""
        storage, worker = self._storage(), threading.get_ident()
        if storage is not None and worker in self._inside and worker not in self._begun:
            self._begun.add(worker)  # a task that this one runs by hand was not taken
            taken = storage.in_hand()
            if taken is not None:
                return taken
        payload: bytes = self._huey.serialize_task(task)
        return payload

    def put_back(self, payload: bytes) -> bool:
        """Put a task back whose worker is told to end; False: nobody answered. Switches greenlets."""
        storage = self._storage()
        try:
            if storage is not None:
                storage.put_back(payload)
            else:
                # Not into the queue, where a worker that waits for a task, and ends with this one, may still get it.
                task = self._huey.deserialize_task(payload)
                pause = datetime.timedelta(milliseconds=self._plugin.options.denied_pause_ms)
                task.eta = self._huey._get_timestamp() + pause
                self._huey.add_schedule(task)
        except Exception as trouble:
            log_event(logging.WARNING, "not put back", error=trouble)
            return False
        return True

    def leave(self) -> None:
        """Leave the task of this worker to its entry."""
        storage = self._storage()
        if storage is not None:
            storage.leave()

    def watch(self) -> None:
        """Have the storage look for tasks that dead workers had only taken; again: no effect. No I/O."""
        storage = self._storage()
        if storage is not None and not storage.is_watched:
            options = self._plugin.options
            keys = QueueKeys(options.prefix, self._queue)
            storage.watch_orphans(self._plugin.connections, keys, self._identify, options.stalled_interval / 2 / 1000)

    def _identify(self, item: bytes) -> str:
        try:
            return str(self._huey.deserialize_task(item).id)
        except Exception:
            return hashlib.sha1(item, usedforsecurity=False).hexdigest()  # no task has it

    def _storage(self) -> ReliableRedisStorage | None:
        # A new one once the instance leaves immediate mode.
        storage = self._huey.storage
        return storage if isinstance(storage, ReliableRedisStorage) else None
