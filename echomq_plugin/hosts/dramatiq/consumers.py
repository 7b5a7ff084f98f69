"""
Consumers of delayed messages that lose none when Redis goes away for a moment.

Dramatiq's forget what they have fetched, or end, when a command fails: such messages stay with their worker, unseen,
until it ends. Retries come back through the same queue, and so does each message that had to wait for its lock.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import redis
from dramatiq.errors import ConnectionClosed

from echomq_plugin.hosts.dramatiq.dead_workers import MOST_REQUEUED


def keep_delayed_messages(broker: Any) -> None:
    """Have a ``RedisBroker`` make such consumers. No I/O."""
    consume = broker.consume
    begun: set[tuple[int, str]] = set()

    @functools.wraps(consume)
    def consume_again(queue_name: str, *args: Any, **kwargs: Any) -> Any:
        # Each consumer has a thread of its own, which makes another one when it has failed.
        consumer_thread = (threading.get_ident(), queue_name)
        if consumer_thread in begun and queue_name in broker.get_declared_delay_queues():
            _told_as_dramatiqs(_requeue_all, broker, queue_name)
        begun.add(consumer_thread)
        consumer = consume(queue_name, *args, **kwargs)
        consumer.requeue = functools.partial(_told_as_dramatiqs, consumer.requeue)
        return consumer

    broker.consume = consume_again


def _requeue_all(broker: Any, queue_name: str) -> None:
    fetched = broker.client.smembers(f"{broker.namespace}:__acks__.{broker.broker_id}.{queue_name}")
    names = [name.decode() for name in fetched]
    for at in range(0, len(names), MOST_REQUEUED):
        broker.do_requeue(queue_name, *names[at : at + MOST_REQUEUED])


def _told_as_dramatiqs(act: Any, *args: Any) -> None:
    """Call, and raise a lost connection as Dramatiq does: another error ends the consumer's thread."""
    try:
        act(*args)
    except redis.ConnectionError as error:
        raise ConnectionClosed(error) from None
