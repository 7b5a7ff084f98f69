"""A clock of one's own may do as little as count."""

from __future__ import annotations

import gevent
import redis

from echomq_plugin import LockManager


class CountingClock:
    """Its wait takes no time at all, and switches no greenlet."""

    def __init__(self) -> None:
        self.now = 0

    def now_ms(self) -> int:
        return self.now

    def wait(self, ms: int) -> None:
        self.now += ms


def test_a_clock_that_only_counts_leaves_the_hub_to_other_greenlets(client: redis.Redis) -> None:
    clock = CountingClock()
    renewed: list[list[str]] = []
    manager = LockManager(client, queue="mail", clock=clock, on_locks_renewed=renewed.append)
    client.set("emq:mail:42:lock", "token", px=30_000)
    manager.start()
    manager.track_job("42", "token")
    with gevent.Timeout(30):
        while not renewed:
            gevent.sleep(0)
    manager.untrack_job("42")
    assert manager.stop(), "nothing was tracked any more, so stop() had to say that all had ended"
    assert renewed[0] == ["42"]
    assert clock.now >= 7_500, f"the first tick came at {clock.now} ms, the protocol says 7 500"
