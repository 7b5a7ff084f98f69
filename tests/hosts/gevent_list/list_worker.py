"""
A worker process of the list tests: ``python list_worker.py '<settings as JSON>'``.

Items are JSON: ``{"id": "a", "do": ["sleep", 0.1]}``. Each run writes when it began and how it ended into the list
``runs``, by the server's clock.
"""

# ruff: noqa: E402  # monkey-patching comes before what it patches
from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from typing import Any

SETTINGS: dict[str, Any] = json.loads(sys.argv[1])

if SETTINGS.pop("patched"):
    from gevent import monkey

    monkey.patch_all()

import gevent
import pluggy
import redis

from echomq_plugin import LockOptions, attach
from echomq_plugin.hosts.gevent import Consumer, current_lock

NOTE = """
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('RPUSH', KEYS[1], cjson.encode({ARGV[1], ARGV[2], ARGV[3], ARGV[4], at}))
"""


def note(client: redis.Redis, job_id: str, event: str) -> None:
    """Write one event of a run, until Redis says that it has it: so it may be there twice."""
    token = current_lock().token
    while True:
        try:
            client.eval(NOTE, 1, "runs", job_id, str(os.getpid()), token, event)
            return
        except redis.ConnectionError:
            gevent.sleep(0.1)


def do(client: redis.Redis, job_id: str, what: str, *words: Any) -> None:
    """Do what an item says."""
    if what == "sleep":
        gevent.sleep(*words)
    elif what == "long at first":
        gevent.sleep(600 if client.incr(f"runs-of:{job_id}") == 1 else 0.05)
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "exit":
        sys.exit(3)
    elif what == "block":
        until = time.monotonic() + words[0]
        while time.monotonic() < until:
            pass
    elif what == "fail":
        raise ValueError("as told")


def main() -> None:
    """Consume until told to stop."""
    logging.basicConfig(level=logging.INFO)
    url, options = SETTINGS["url"], LockOptions(**SETTINGS["options"])
    client = redis.Redis.from_url(url)

    def handle(item: bytes) -> None:
        job = json.loads(item)
        note(client, job["id"], "start")
        try:
            do(client, job["id"], *job["do"])
        except BaseException as error:
            note(client, job["id"], type(error).__name__)
            raise
        note(client, current_lock().job_id, "end")

    plugin = attach(pluggy.PluginManager("list-worker"), url, "mail", options)
    consumer = Consumer(
        plugin,
        "mail",
        handle,
        concurrency=SETTINGS["concurrency"],
        job_id=lambda item: json.loads(item)["id"],
        shutdown_timeout_ms=SETTINGS["shutdown_timeout_ms"],
    )
    ended = consumer.run()
    plugin.stop(timeout_ms=5_000)
    print("all jobs ended" if ended else "jobs left", flush=True)


main()
