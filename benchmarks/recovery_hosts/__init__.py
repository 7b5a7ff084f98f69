"""One driver for each host of ``benchmarks.recovery``: how its workers are started and its jobs enqueued."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

HOSTS = ("rq", "huey", "dramatiq", "gevent")


class Driver(Protocol):
    """
    What the benchmark asks of a host. A driver is made once, by the benchmark's own process.

    Workers find the server in ``BENCH_REDIS_URL``, and ``BENCH_STOCK=1`` where they are to run without the library;
    the library's options are in ``ECHOMQ_*``. A job's body is ``recovery_hosts.job_body.run(key)``.
    """

    rescuer_serves_all: bool
    """Whether one worker can serve all queues; else each queue gets a rescuer of its own."""

    def __init__(self, redis_url: str, *, stock: bool) -> None: ...

    def command(self, queues: Sequence[str]) -> list[str]:
        """Return the command line of a worker that serves these queues, in the foreground, killed by its pid."""
        ...

    def enqueue(self, queue: str, key: str) -> None:
        """Enqueue one job that runs ``job_body.run(key)`` and may take an hour."""
        ...


def driver_class(host: str) -> type[Driver]:
    """Return a host's driver: class ``HostDriver`` of module ``benchmarks.recovery_hosts.<host>_driver``."""
    module = importlib.import_module(f"benchmarks.recovery_hosts.{host}_driver")
    found: type[Driver] = module.HostDriver
    return found
