"""Huey: consumers with worker threads, one for each queue, with or without our locks."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from huey import RedisHuey

from benchmarks.recovery_hosts import job_body


def body(key: str) -> None:
    """Do what every host's job does."""
    job_body.run(key)


body.__module__ = "bench"  # the same for the benchmark and for its workers, which run this file as a script


def instance(url: str, queue: str) -> tuple[Any, Any]:
    """Return the Huey of a queue and its task."""
    huey = RedisHuey(queue, url=url)
    return huey, huey.task()(body)


class HostDriver:
    """See ``benchmarks.recovery_hosts.Driver``."""

    rescuer_serves_all = True

    def __init__(self, redis_url: str, *, stock: bool) -> None:
        self._url = redis_url

    def command(self, queues: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "benchmarks.recovery_hosts.huey_driver", *queues]

    def enqueue(self, queue: str, key: str) -> None:
        instance(self._url, queue)[1](key)


def main(queues: Sequence[str]) -> None:
    """Be a worker."""
    for queue in queues:
        huey, _ = instance(os.environ["BENCH_REDIS_URL"], queue)
        if os.environ["BENCH_STOCK"] != "1":
            from echomq_plugin.hosts.huey import lock_tasks

            lock_tasks(huey)
        huey.create_consumer(workers=1, worker_type="thread").start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
