"""
How long locks wait for their renewal while a job keeps the app's hub busy for 12 ticks.

Once with renewal on a hub of its own, once with ``dedicated_hub=False``, on a real server. The lock lives long enough
to outlast both, so that what is measured is a delay and never a loss.

    python -m benchmarks.blocked_hub [--json]

The last line of ``--json`` is one object:

    own_hub_ratio   longest time between two renewals / tick, renewal on its own hub
    same_hub_ratio  the same with renewal on the app's hub
"""

from __future__ import annotations

import argparse
import json
import time

import gevent
import redis

from echomq_plugin import LockManager
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.events import LocksRenewed, Report
from echomq_plugin.keys import QueueKeys
from echomq_plugin.options import LockOptions

TICK_MS = 500
BUSY_TICKS = 12
LOCKS = 100
START_LIMIT_S = 10.0


class Gaps:
    """Takes the reports of a manager and keeps the longest time between two renewals of one lock."""

    def __init__(self) -> None:
        self.renewed_at: dict[str, float] = {}
        self.longest_s = 0.0
        self.reports = 0
        self.trouble: Report | None = None

    def take(self, report: Report) -> None:  # called in the renewal greenlet, so no other hub delays the figure
        if not isinstance(report, LocksRenewed):
            self.trouble = report
            return
        now = time.monotonic()
        for job_id in report.job_ids:
            self.longest_s = max(self.longest_s, now - self.renewed_at.get(job_id, now))
            self.renewed_at[job_id] = now
        self.reports += 1

    def wait_for_more(self, reports: int) -> None:
        wanted, until = self.reports + reports, time.monotonic() + START_LIMIT_S
        while self.reports < wanted:
            if self.trouble is not None or time.monotonic() > until:
                raise RuntimeError(f"locks were not renewed: {self.trouble or 'no answer'}")
            gevent.sleep(0.01)


def longest_gap_ms(url: str, *, dedicated_hub: bool) -> float:
    """Return the longest time between two renewals of one lock, in ms, while the app's hub is busy."""
    options = LockOptions(lock_duration=30_000, lock_renew_time=2 * TICK_MS, dedicated_hub=dedicated_hub)
    keys = QueueKeys(options.prefix, "own" if dedicated_hub else "same")
    gaps = Gaps()
    client = redis.Redis.from_url(url)
    manager = LockManager(url, keys.queue, options=options, outbox=gaps.take)
    for number in range(LOCKS):
        client.set(keys.lock(str(number)), "token", px=options.lock_duration)
        manager.track_job(number, "token")
    manager.start()
    gaps.wait_for_more(2)
    busy_until = time.monotonic() + BUSY_TICKS * TICK_MS / 1000
    while time.monotonic() < busy_until:
        sum(range(1000))
    gaps.wait_for_more(1)
    manager.stop()
    client.close()
    return gaps.longest_s * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    with EmbeddedServer() as server:
        figures = {
            "own_hub_ratio": round(longest_gap_ms(server.url, dedicated_hub=True) / TICK_MS, 3),
            "same_hub_ratio": round(longest_gap_ms(server.url, dedicated_hub=False) / TICK_MS, 3),
        }
    for name, value in figures.items():
        print(f"{name} {value}")
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
