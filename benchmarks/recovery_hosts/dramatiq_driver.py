"""Dramatiq: one process with two worker threads, with or without our middleware."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.recovery_hosts import job_body


class HostDriver:
    """See ``benchmarks.recovery_hosts.Driver``."""

    rescuer_serves_all = True

    def __init__(self, redis_url: str, *, stock: bool) -> None:
        self._broker = RedisBroker(url=redis_url, middleware=[])

    def command(self, queues: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "benchmarks.recovery_hosts.dramatiq_driver", *queues]

    def enqueue(self, queue: str, key: str) -> None:
        options = {"time_limit": 2_000 * job_body.HANGS_S}
        self._broker.enqueue(dramatiq.Message(queue, f"run-{queue}", (key,), {}, options))


def main(queues: Sequence[str]) -> None:
    """Be a worker."""
    broker: Any = RedisBroker(url=os.environ["BENCH_REDIS_URL"])
    if os.environ["BENCH_STOCK"] != "1":
        from echomq_plugin.hosts.dramatiq import LockMiddleware

        broker.add_middleware(LockMiddleware())
    for queue in queues:
        dramatiq.actor(broker=broker, queue_name=queue, actor_name=f"run-{queue}")(lambda key: job_body.run(key))  # noqa: PLW0108  # one for each actor
    # What `dramatiq` does in each of its processes.
    broker.emit_after("process_boot")
    dramatiq.Worker(broker, worker_threads=2).start()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1:])
