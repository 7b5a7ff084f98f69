"""An app whose actor notes how many bodies of one message run at once."""

from __future__ import annotations

import os
import time

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from echomq_plugin.hosts.dramatiq import LockMiddleware

broker = RedisBroker(url=os.environ["DUPLICATES_URL"])
broker.add_middleware(CurrentMessage())
broker.add_middleware(LockMiddleware())
dramatiq.set_broker(broker)
client = redis.Redis.from_url(os.environ["DUPLICATES_URL"])


@dramatiq.actor
def note() -> None:
    message_id = CurrentMessage.get_current_message().message_id
    if client.hincrby("going-on", message_id, 1) > 1:
        client.incr("overlapping")
    time.sleep(0.1)
    client.hincrby("going-on", message_id, -1)
    client.hincrby("ran", message_id, 1)
