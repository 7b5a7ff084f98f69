"""The bare gevent host keeps the rules of every host."""

from __future__ import annotations

import sys
from pathlib import Path

from echomq_plugin.testing import HostContract


class TestGeventList(HostContract):
    """A list has no names for deliveries, no retries and no time limits of its own."""

    queue = "list"
    can_deliver_again = True
    can_give_up = True

    def enqueue(self, name, *, retries=0, time_limit_ms=None):
        self.client.lpush("jobs", name)
        return name

    def start_worker(self):
        return self.spawn(
            [sys.executable, "-m", "gevent.monkey", str(Path(__file__).with_name("contract_list_worker.py"))]
        )

    def deliver_again(self, job_id):
        self.client.lpush("jobs", job_id)

    def is_given_up(self, job_id):
        return job_id in self.client.lrange("jobs:failed", 0, -1)
