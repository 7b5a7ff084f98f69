"""Actors of a Dramatiq app whose messages come back within a minute when a worker dies."""

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from echomq_plugin import hookimpl
from echomq_plugin.hosts.dramatiq import LockMiddleware

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

locks = LockMiddleware()
broker = RedisBroker(url=REDIS_URL)
broker.add_middleware(locks)  # after all other middleware
dramatiq.set_broker(broker)


@dramatiq.actor(max_retries=3)
def report(month, seconds=60):
    """Build a report: nothing that you want to build twice at once."""
    print(f"{month}: begun", flush=True)
    for _ in range(int(seconds * 10)):
        time.sleep(0.1)
    print(f"{month}: done", flush=True)


class Alerts:
    """What should wake somebody."""

    @hookimpl
    def echomq_job_recovered(self, job):
        print(f"{job.job_id}: its worker {job.worker} died; it is in the queue again", flush=True)

    @hookimpl
    def echomq_lock_lost(self, queue, lost):
        for lock in lost:
            print(f"{lock.job_id}: lost its lock ({lock.reason}) after {lock.held_for_ms} ms", flush=True)


locks.pm.register(Alerts())


if __name__ == "__main__":
    for month in ("January", "February", "March"):
        print(f"{month}: {report.send(month).message_id}")
