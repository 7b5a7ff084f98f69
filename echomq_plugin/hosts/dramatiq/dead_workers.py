"""DeadWorkers: what a dead worker of the Redis broker had in hand goes back through the broker's own script."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dramatiq.common import q_name
from dramatiq.message import Message

from echomq_plugin.connections import Connections
from echomq_plugin.options import LockOptions

Held = Callable[[str, list[str]], list[str | None]]
"""Gives, for a queue and some message ids, the delivery of each one that has an entry."""

SURELY_DEAD_MS: Final = 5_000
"""A worker without a heartbeat for this long is dead, in ms; a live one beats every second, or three."""

PASSES: Final = 5
"""
How many passes in a row must find a worker silent. Passes are counted and not time: while Redis is away, or all of us
are suspended, no worker beats, and none is dead for that.
"""

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

    Attributes:
        pass_every_s: how often to call ``look``, in seconds.

    """

    def __init__(self, broker: Any, options: LockOptions, held: Held, dropped_key: Callable[[str, str], str]) -> None:
        self._broker = broker
        self._held = held
        self._dropped_key = dropped_key
        self._connections = Connections(broker.client, call_limit_ms=options.call_limit)
        # The sweep needs as long, at least, to find a dead worker's runs.
        silent_ms = min(broker.heartbeat_timeout, (options.lock_duration + options.stalled_interval) // 2)
        self.pass_every_s = max(SURELY_DEAD_MS, silent_ms) / PASSES / 1000
        self._beats: dict[str, tuple[float, int]] = {}

    def requeue(self, worker_id: str, queue_name: str, delivery: str) -> None:
        """
        Put the delivery of a dead run back. Again: no effect.

        Raises:
            RedisCallError: Redis gave no answer.

        """

        def work(client: Any) -> None:
            with self._acting_as(worker_id, client) as dead:
                dead.do_requeue(queue_name, delivery)
                self.restore_dropped(dead, client, queue_name, delivery)

        self._connections.call("requeue a dead worker's message", work)

    def dead_letter(self, worker_id: str, queue_name: str, delivery: str) -> None:
        """
        Move the delivery of a dead run to the dead letters. Again: no effect.

        Raises:
            RedisCallError: Redis gave no answer.

        """

        def work(client: Any) -> None:
            with self._acting_as(worker_id, client) as dead:
                dead.do_nack(queue_name, delivery)

        self._connections.call("give up a dead worker's message", work)

    def look(self) -> None:
        """
        Make one pass over all workers, and put back what the dead ones had fetched and not begun.

        Raises:
            RedisCallError: Redis gave no answer; the passes begin anew.

        """
        before, self._beats = self._beats, {}
        self._beats = self._connections.call("look for silent workers", lambda client: self._look(client, before))

    def _look(self, client: Any, before: dict[str, tuple[float, int]]) -> dict[str, tuple[float, int]]:
        beats = {}
        for name, beat in client.zrange(self._heartbeats, 0, -1, withscores=True):
            worker_id = name.decode()
            last, passes = before.get(worker_id, (None, 0))
            passes = passes + 1 if last == beat else 0
            if passes == PASSES and not self._requeue_fetched(worker_id, client):
                passes -= 1  # asked again in the next pass
            beats[worker_id] = (beat, passes)
        return beats

    def _requeue_fetched(self, worker_id: str, client: Any) -> bool:
        """Return False if the worker has runs with entries: it lives, or the sweep brings these back first."""
        fetched = []
        # Copies: declaring an actor meanwhile adds to them.
        for queue_name in {*self._broker.get_declared_queues(), *self._broker.get_declared_delay_queues()}:
            members = client.smembers(f"{self._broker.namespace}:__acks__.{worker_id}.{queue_name}")
            names = [name.decode() for name in members]
            for at in range(0, len(names), MOST_REQUEUED):
                some = names[at : at + MOST_REQUEUED]
                bodies = client.hmget(f"{self._broker.namespace}:{queue_name}.msgs", some)
                present = {name: Message.decode(body) for name, body in zip(some, bodies, strict=True) if body}
                running = self._held(q_name(queue_name), [message.message_id for message in present.values()])
                if any(name == delivery for name, delivery in zip(present, running, strict=True)):
                    return False
                if present:
                    fetched.append((queue_name, list(present)))
        if fetched:
            with self._acting_as(worker_id, client) as dead:
                for queue_name, names in fetched:
                    dead.do_requeue(queue_name, *names)
        return True

    def restore_dropped(self, dead: Any, client: Any, queue_name: str, delivery: str) -> None:
        """Enqueue a delivery anew if a dropped copy took its body along. Switches greenlets."""
        key = self._dropped_key(queue_name, delivery)
        body = client.get(key)
        if body is not None:
            if not client.hexists(f"{dead.namespace}:{queue_name}.msgs", delivery):
                dead.do_enqueue(queue_name, delivery, body)
            client.delete(key)

    @property
    def _heartbeats(self) -> str:
        return f"{self._broker.namespace}:__heartbeats__"

    @contextmanager
    def _acting_as(self, worker_id: str, client: Any) -> Iterator[Any]:
        """
        Give a broker that acts in a worker's name.

        Every command of a broker counts as a heartbeat of its worker. This one gets its own back afterwards: else it
        would seem to live, and what it had fetched would wait again.
        """
        heartbeat = client.zscore(self._heartbeats, worker_id)
        dead = copy.copy(self._broker)
        dead.broker_id = worker_id
        dead.client = client
        dead.scripts = {name: client.register_script(script.script) for name, script in self._broker.scripts.items()}
        yield dead
        if heartbeat is None:
            client.zrem(self._heartbeats, worker_id)
        else:
            client.zadd(self._heartbeats, {worker_id: heartbeat})
