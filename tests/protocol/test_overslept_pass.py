"""A pass that comes too late, after a stop or a blocked hub, asks the server before it calls a lock lost."""

from __future__ import annotations

import pytest
import redis

from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.events import LocksLost, Report
from echomq_plugin.renewal import Renewal
from echomq_plugin.schedule import late_by
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable
from echomq_plugin.tracking import TrackedLocks

DURATION = 30_000
THRESHOLD = 7_500


class Bench:
    """One tracked lock, taken at 0, and a clock that stands at 100 000 when the pass begins."""

    def __init__(self, connections: Connections) -> None:
        self.reports: list[Report] = []
        self.table = LockTable(TrackedLocks(lock_duration=DURATION, threshold=THRESHOLD))
        self.table.tracked.track("mail", "42", "ours", now=0)
        self.renewal = Renewal(
            self.table,
            Scripts(connections),
            prefix="emq",
            batch_size=10,
            now_ms=lambda: 100_000,
            outbox=self.reports.append,
        )

    def losses(self) -> list[tuple[str, int]]:
        return [
            (lost.reason, lost.hub_blocked_ms)
            for report in self.reports
            if isinstance(report, LocksLost)
            for lost in report.lost
        ]


@pytest.fixture
def bench(server: EmbeddedServer, client: redis.Redis) -> Bench:
    return Bench(Connections(server.url, call_limit_ms=5_000))


@pytest.mark.parametrize(("holder", "reason"), [("another", "taken"), (None, "missing")])
def test_after_a_stop_the_reason_is_what_the_server_knows(
    bench: Bench, client: redis.Redis, holder: str | None, reason: str
) -> None:
    if holder is not None:
        client.set("emq:mail:42:lock", holder)

    assert bench.renewal.run(hub_blocked_ms=92_500) == []
    assert bench.renewal.run() == []

    assert bench.losses() == [(reason, 92_500)]
    assert client.get("emq:mail:42:lock") == (holder and holder.encode())


def test_a_deadline_on_the_very_ms_that_was_overslept_is_left_to_the_server(bench: Bench, client: redis.Redis) -> None:
    late = late_by(100_000, DURATION, tolerance_ms=2_000)

    assert bench.renewal.run(hub_blocked_ms=late) == []

    assert [reason for reason, _ in bench.losses()] == ["missing"]


def test_a_deadline_that_comes_while_nobody_answers_is_judged_on_its_ms(bench: Bench) -> None:
    late = late_by(100_000, 100_000 - 3, tolerance_ms=2_000)

    assert late == 3
    assert [report.reason for _, report in bench.table.tracked.expired(DURATION + late, late)] == ["expired"]


def test_after_a_stop_a_lock_that_the_server_still_has_is_kept(bench: Bench, client: redis.Redis) -> None:
    client.set("emq:mail:42:lock", "ours", px=500_000)

    assert bench.renewal.run(hub_blocked_ms=92_500) == []

    assert bench.losses() == []
    assert client.pttl("emq:mail:42:lock") <= DURATION


def test_a_deadline_that_passed_before_the_stop_is_not_asked_about(bench: Bench, client: redis.Redis) -> None:
    client.set("emq:mail:42:lock", "ours", px=500_000)

    assert bench.renewal.run(hub_blocked_ms=70_000) == []

    assert bench.losses() == [("expired", 70_000)]


def test_after_a_stop_a_server_that_does_not_answer_is_asked_once() -> None:
    bench = Bench(Connections("redis://127.0.0.1:1", call_limit_ms=200))

    [failure] = bench.renewal.run(hub_blocked_ms=92_500)
    assert failure.job_ids == ("42",)
    assert bench.losses() == []

    # The next pass is due at the deadline, so long ago: it is as late as the deadline is old.
    assert bench.renewal.run(hub_blocked_ms=100_000 - DURATION) == []
    assert bench.losses() == [("expired", 70_000)]
