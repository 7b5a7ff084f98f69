"""RQ: its forking worker, ours or stock."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import redis
from rq import Queue

from benchmarks.recovery_hosts import job_body


class HostDriver:
    """See ``benchmarks.recovery_hosts.Driver``."""

    rescuer_serves_all = True

    def __init__(self, redis_url: str, *, stock: bool) -> None:
        self._url = redis_url
        self._connection = redis.Redis.from_url(redis_url)
        self._class = "rq.worker.Worker" if stock else "echomq_plugin.hosts.rq.LockedWorker"

    def command(self, queues: Sequence[str]) -> list[str]:
        rq = str(Path(sys.executable).with_name("rq"))
        return [rq, "worker", "--worker-class", self._class, "--url", self._url, *queues]

    def enqueue(self, queue: str, key: str) -> None:
        Queue(queue, connection=self._connection).enqueue(job_body.run, key, job_timeout=2 * job_body.HANGS_S)
