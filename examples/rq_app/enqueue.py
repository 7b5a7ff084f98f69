"""Enqueue three reports."""

from __future__ import annotations

import os

import jobs
import redis
from rq import Queue

queue = Queue("reports", connection=redis.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379")))
for number in range(3):
    print(queue.enqueue(jobs.report, number, job_timeout="4h").id)
