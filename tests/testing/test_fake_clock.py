"""FakeClock: time stands still until a test lets it pass."""

from __future__ import annotations

import gevent
import pytest

from echomq_plugin.testing import FakeClock


def test_time_passes_only_by_advance() -> None:
    clock = FakeClock(now_ms=5_000)

    clock.wait(0)
    clock.advance(250)

    assert clock.now_ms() == 5_250


def test_a_wait_returns_without_time_passing_so_that_a_stop_is_noticed() -> None:
    clock = FakeClock()
    before = clock.now_ms()

    clock.wait(60_000)

    assert clock.now_ms() == before


def test_advance_returns_when_those_it_woke_have_worked_and_wait_again() -> None:
    clock = FakeClock(now_ms=0)
    done: list[int] = []

    def tick_every_100_ms() -> None:
        due = 100
        while True:
            clock.wait(due - clock.now_ms())
            if clock.now_ms() >= due:
                gevent.sleep(0.02)  # work that switches greenlets
                done.append(clock.now_ms())
                due = clock.now_ms() + 100

    ticker = gevent.spawn(tick_every_100_ms)
    try:
        clock.advance(99)
        assert done == []
        clock.advance(1)
        assert done == [100]
        clock.advance(1_000)
        assert done == [100, 1_100]
    finally:
        ticker.kill()


def test_advance_does_not_wait_for_those_that_have_ended() -> None:
    clock = FakeClock()
    ended = gevent.spawn(clock.wait, 60_000)
    gevent.sleep(0)

    clock.advance(60_000)

    assert ended.ready()


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="advance by 0 or more"):
        FakeClock().advance(-1)


def test_somebody_who_never_comes_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_plugin.testing.clocks.SETTLE_S", 0.05)
    clock = FakeClock()

    def work_for_ever() -> None:
        clock.wait(1)
        gevent.sleep(1_000)

    working = gevent.spawn(work_for_ever)
    try:
        with pytest.raises(TimeoutError, match="still works"):
            clock.advance(1)
    finally:
        working.kill()
