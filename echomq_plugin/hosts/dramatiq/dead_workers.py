"""DeadWorkers: what a dead worker of the Redis broker had in hand goes back through the broker's own script."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from dramatiq.common import current_millis, q_name
from dramatiq.message import Message

from echomq_plugin.connections import Connections
from echomq_plugin.options import LockOptions

Held = Callable[[str, list[str]], list[str | None]]
"""Gives, for a queue and some message ids, the delivery of each one that has an entry."""

SURELY_DEAD_MS: Final = 5_000
"""A worker without a heartbeat for this long is dead, in ms; a live one beats every second."""

MOST_REQUEUED: Final = 500
"""The most messages that one call of the broker's script moves, so that none keeps Redis busy for long."""


class DeadWorkers:
    """
    Acts in the name of dead workers, on connections of its own: it is called from the recovery lane.

    Args:
        broker: a ``RedisBroker``.
        options: durations and limits.
        held: see ``Held``.
        dropped_key: where the body of a dropped delivery is kept.

    """

    def __init__(self, broker: Any, options: LockOptions, held: Held, dropped_key: Callable[[str, str], str]) -> None:
        self._broker = broker
        self._held = held
        self._dropped_key = dropped_key
        self._connections = Connections(broker.client, call_limit_ms=options.call_limit)
        # A worker that has died is found when its locks have run out, so its last heartbeat is that old at least.
        self._silent_ms = max(
            SURELY_DEAD_MS, min(broker.heartbeat_timeout, (options.lock_duration + options.stalled_interval) // 2)
        )

    def requeue(self, worker_id: str, queue_name: str, delivery: str) -> None:
        """
        Put a delivery back and, if its worker is dead, all that this worker had fetched. Again: no effect.

        A worker that lives may have lost a single lock: then what else it has in hand is left to it.

        Raises:
            RedisCallError: Redis gave no answer; some may be back already.

        """

        def put_back(dead: Any, client: Any) -> None:
            dead.do_requeue(queue_name, delivery)
            self.restore_dropped(dead, client, queue_name, delivery)

        self._settle("requeue a dead worker's messages", worker_id, put_back)

    def dead_letter(self, worker_id: str, queue_name: str, delivery: str) -> None:
        """
        Move a delivery to the dead letters and, as ``requeue`` does, put back all else that a dead worker had fetched.

        Raises:
            RedisCallError: Redis gave no answer.

        """
        self._settle("give up a dead worker's message", worker_id, lambda dead, _: dead.do_nack(queue_name, delivery))

    def _settle(self, operation: str, worker_id: str, act: Callable[[Any, Any], object]) -> None:
        def work(client: Any) -> None:
            heartbeat = self._heartbeat(client, worker_id)
            dead = self._acting_as(worker_id, client)
            act(dead, client)
            if heartbeat is None or heartbeat + self._silent_ms < current_millis():
                self._requeue_all(dead, client)
            self._set_heartbeat(client, worker_id, heartbeat)

        self._connections.call(operation, work)

    def _requeue_all(self, dead: Any, client: Any) -> None:
        # Copies: declaring an actor meanwhile adds to them.
        for queue_name in {*self._broker.get_declared_queues(), *self._broker.get_declared_delay_queues()}:
            fetched = client.smembers(f"{dead.namespace}:__acks__.{dead.broker_id}.{queue_name}")
            names = [name.decode() for name in fetched]
            for at in range(0, len(names), MOST_REQUEUED):
                self._requeue_some(dead, client, queue_name, names[at : at + MOST_REQUEUED])

    def _requeue_some(self, dead: Any, client: Any, queue_name: str, names: list[str]) -> None:
        # A delivery with an entry was running: the sweep brings it back by itself, and counts how often.
        bodies = client.hmget(f"{dead.namespace}:{queue_name}.msgs", names)
        present = [(name, Message.decode(body).message_id) for name, body in zip(names, bodies, strict=True) if body]
        running = self._held(q_name(queue_name), [message_id for _, message_id in present])
        waiting = [name for (name, _), delivery in zip(present, running, strict=True) if name != delivery]
        if waiting:
            dead.do_requeue(queue_name, *waiting)

    def restore_dropped(self, dead: Any, client: Any, queue_name: str, delivery: str) -> None:
        """Enqueue a delivery anew if a dropped copy took its body along. Switches greenlets."""
        key = self._dropped_key(queue_name, delivery)
        body = client.get(key)
        if body is not None:
            if not client.hexists(f"{dead.namespace}:{queue_name}.msgs", delivery):
                dead.do_enqueue(queue_name, delivery, body)
            client.delete(key)

    def _acting_as(self, worker_id: str, client: Any) -> Any:
        dead = copy.copy(self._broker)
        dead.broker_id = worker_id
        dead.client = client
        dead.scripts = {name: client.register_script(script.script) for name, script in self._broker.scripts.items()}
        return dead

    # Every command of the broker counts as a heartbeat of the worker in whose name it is given. It gets its own back:
    # else what it had fetched would wait for the broker's own time limit again.

    def _heartbeat(self, client: Any, worker_id: str) -> int | None:
        score = client.zscore(f"{self._broker.namespace}:__heartbeats__", worker_id)
        return None if score is None else int(score)

    def _set_heartbeat(self, client: Any, worker_id: str, heartbeat: int | None) -> None:
        key = f"{self._broker.namespace}:__heartbeats__"
        if heartbeat is None:
            client.zrem(key, worker_id)
        else:
            client.zadd(key, {worker_id: heartbeat})
