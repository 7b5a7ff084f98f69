"""Enqueue three reports."""

from __future__ import annotations

import os

import jobs
import redis
from rq import Queue

# As `rq worker` looks for it.
url = os.environ.get("RQ_REDIS_URL") or os.environ.get("REDIS_URL") or "redis://localhost:6379"
queue = Queue("reports", connection=redis.Redis.from_url(url))
for number in range(3):
    print(queue.enqueue(jobs.report, number, job_timeout="4h").id)
