"""Tasks of a Huey app that survive their worker."""

import os
import time

from huey import Huey

from echomq_plugin import hookimpl
from echomq_plugin.hosts.huey import ReliableRedisStorage, lock_tasks

REDIS_URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

huey = Huey("reports", storage_class=ReliableRedisStorage, url=REDIS_URL)
plugin = lock_tasks(huey)


@huey.task(retries=2)
def report(month, seconds=60):
    """Build a report: nothing that you want to lose half-way, or to build twice at once."""
    print(f"{month}: begun", flush=True)
    for _ in range(int(seconds * 10)):
        time.sleep(0.1)
    print(f"{month}: done", flush=True)
    return month


class Alerts:
    """What should wake somebody."""

    @hookimpl
    def echomq_job_recovered(self, job):
        print(f"{job.job_id}: its worker {job.worker} died; it is in the queue again", flush=True)

    @hookimpl
    def echomq_lock_lost(self, queue, lost):
        for lock in lost:
            print(f"{lock.job_id}: lost its lock ({lock.reason}) after {lock.held_for_ms} ms", flush=True)


plugin.pm.register(Alerts())
