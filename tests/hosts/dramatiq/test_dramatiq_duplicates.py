"""Row 21: delayed messages that come twice, with dramatiq-gevent and two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import redis
from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

HERE = Path(__file__).parent
MESSAGES = 200


def test_no_two_bodies_of_one_message_run_at_once_and_the_copies_are_acknowledged(own_server):
    """
    200 delayed messages while the workers are busy.

    A quarter is enqueued twice, as two deliveries of one message id; and what comes into the queue is pushed twice more
    under its own name.
    """
    client = redis.Redis.from_url(own_server.url, decode_responses=True)
    broker = RedisBroker(url=own_server.url, middleware=[])
    messages = [Message("default", "note", (), {}, {}) for _ in range(MESSAGES)]
    for message in [*messages, *messages[::4]]:
        broker.enqueue(message, delay=200)
    worker = subprocess.Popen(
        [
            sys.executable, str(Path(sys.executable).with_name("dramatiq-gevent")), "duplicates_app",
            "--processes", "2", "--threads", "8", "--path", str(HERE),
        ],
        env={**os.environ, "DUPLICATES_URL": own_server.url, "ECHOMQ_DENIED_PAUSE_MS": "100"},
        start_new_session=True,
    )  # fmt: skip
    try:
        until = time.monotonic() + 120
        copied = set()
        while client.hlen("ran") < MESSAGES or client.hlen("dramatiq:default.msgs") + client.hlen(
            "dramatiq:default.DQ.msgs"
        ):
            assert time.monotonic() < until, client.hlen("ran")
            for name in client.hkeys("dramatiq:default.msgs"):
                # What is put back has a name of its own: were that copied too, there would be no end.
                if name not in copied and len(copied) < MESSAGES:
                    copied.add(name)
                    client.rpush("dramatiq:default", name, name)
            time.sleep(0.01)
        # A name that is taken after its body was acknowledged stays among its worker's names: so it is without locks.
        while client.llen("dramatiq:default") or client.keys("emq:*:lock"):
            assert time.monotonic() < until, client.llen("dramatiq:default")
            time.sleep(0.05)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        broker.client.close()
    assert len(copied) >= MESSAGES / 2
    assert client.get("overlapping") is None
    assert set(client.hkeys("ran")) == {message.message_id for message in messages}
    assert client.hlen("emq:dramatiq.default:held") == 0
    assert client.hlen("dramatiq:default.XQ.msgs") == 0
    client.close()
