"""Ticks of the system clock, against a real server: none of them comes too early to renew anything."""

from __future__ import annotations

import time

import gevent
import pytest
import redis

from echomq_plugin import LockManager, LockOptions
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.tracking import TrackedLock, TrackedLocks

TICKS = 60
LIMIT_S = 30.0


@pytest.mark.parametrize("dedicated_hub", [True, False], ids=["own hub", "caller's hub"])
def test_every_tick_finds_the_lock_due_that_the_tick_before_renewed(
    server: EmbeddedServer, client: redis.Redis, dedicated_hub: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is often over within the ms in which it began: then a tick on the exact ms would skip the lock."""
    found: list[int] = []
    due = TrackedLocks.due

    def counted(self: TrackedLocks, now: int) -> list[TrackedLock]:
        locks = due(self, now)
        if self.get("ticks", "1") is not None:
            found.append(len(locks))
        return locks

    monkeypatch.setattr(TrackedLocks, "due", counted)
    options = LockOptions(lock_duration=30_000, lock_renew_time=40, dedicated_hub=dedicated_hub)
    manager = LockManager(server.url, "ticks", options=options)
    client.set("emq:ticks:1:lock", "token", px=options.lock_duration)
    manager.track_job("1", "token")
    manager.start()
    try:
        until = time.monotonic() + LIMIT_S
        while len(found) < TICKS and time.monotonic() < until:
            gevent.sleep(0.01)
    finally:
        manager.stop()
    assert len(found) >= TICKS
    assert set(found) == {1}
