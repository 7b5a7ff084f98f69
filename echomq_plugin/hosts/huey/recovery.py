"""Recovery of Huey's tasks: on connections of its own, because it is called from the recovery lane."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from huey import signals
from huey.api import PeriodicTask
from huey.exceptions import TaskException
from huey.storage import RedisStorage
from huey.utils import Error

from echomq_plugin.connections import Connections
from echomq_plugin.events import StalledJob
from echomq_plugin.hosts.huey.storage import ReliableRedisStorage


class TaskRecovery:
    """
    Puts the tasks of dead runs back, or fails them.

    Args:
        huey: the instance.
        call_limit_ms: the limit of one recovery, in ms.

    """

    def __init__(self, huey: Any, call_limit_ms: int) -> None:
        self._huey = huey
        self._connections = (
            Connections(huey.storage.conn, call_limit_ms=call_limit_ms)
            if isinstance(huey.storage, RedisStorage)
            else None
        )

    def put_back(self, payload: bytes) -> None:
        """
        Put a task back into its queue, with the id it had.

        Raises:
            RedisCallError: there was no answer.

        """
        storage = self._huey.storage
        if isinstance(storage, ReliableRedisStorage):
            # No longer taken: somebody has put it back already, or it was dealt with.
            storage.put_back(payload)
            return
        self._with_huey("put a task back", lambda huey: huey.enqueue(huey.deserialize_task(payload)))

    def fail(self, payload: bytes, job: StalledJob) -> None:
        """
        Let a task end as one that has failed for the last time: result, signal, error handler, chord.

        Raises:
            RedisCallError: there was no answer.

        """
        text = f"given up: its workers died {job.stalled_count} times in the middle of it"

        def fail_task(huey: Any) -> None:
            task = huey.deserialize_task(payload)
            metadata = {"error": text, "retries": 0, "traceback": "", "task_id": task.id}
            error = Error(metadata)
            if huey.results and not isinstance(task, PeriodicTask):
                following = task
                while following is not None:
                    huey.put_result(following.id, error)
                    following = following.on_complete
            exception = TaskException(metadata)
            huey._emit(signals.SIGNAL_ERROR, task, exception)
            if task.on_error:
                handler = copy.copy(task.on_error)
                handler.extend_data(exception)
                huey.enqueue(handler)
            if hasattr(huey, "_abort_chord_member"):  # Huey 3
                huey._abort_chord_member(task, error)

        self._with_huey("give a task up", fail_task)
        storage = self._huey.storage
        if isinstance(storage, ReliableRedisStorage) and self._connections is not None:
            self._connections.call("forget a task", lambda client: client.lrem(storage.taken_key, 1, payload))

    def _with_huey(self, operation: str, act: Callable[[Any], Any]) -> None:
        if self._connections is None:
            act(self._huey)
            return

        def work(client: Any) -> None:
            # The app's own client belongs to the app's threads and hub.
            huey = copy.copy(self._huey)
            huey.storage = copy.copy(self._huey.storage)
            huey.storage.conn = client
            act(huey)

        self._connections.call(operation, work)
