"""Schedule: the next tick, the next retry or the next deadline, whichever comes first."""

from __future__ import annotations

import pytest

from echomq_plugin.schedule import Schedule, usual_jitter


def _schedule(interval: int = 7_500, jitter: float = 1.0) -> Schedule:
    return Schedule(interval, 0, lambda: jitter)


def test_the_first_tick_comes_one_interval_after_the_start() -> None:
    assert _schedule().next_pass(None) == 7_500


@pytest.mark.parametrize(("deadline", "expected"), [(None, 7_500), (9_000, 7_500), (3_000, 3_000), (-5, -5)])
def test_a_deadline_before_the_tick_comes_first(deadline: int | None, expected: int) -> None:
    assert _schedule().next_pass(deadline) == expected


def test_the_timer_is_armed_again_after_the_work_of_a_tick() -> None:
    schedule = _schedule()

    assert schedule.passed(7_800, failed=False) == 7_500

    assert schedule.next_pass(None) == 7_800 + 7_500


def test_a_pass_between_ticks_does_not_move_the_tick() -> None:
    schedule = _schedule()

    assert schedule.passed(3_000, failed=False) == 4_500

    assert schedule.next_pass(None) == 7_500


def test_failures_are_retried_after_half_a_second_and_each_time_after_twice_as_long_up_to_the_interval() -> None:
    schedule, now, delays = _schedule(), 7_500, []
    for _ in range(7):
        schedule.passed(now, failed=True)
        delays.append(schedule._next_retry - now)  # type: ignore[operator]
        now += 1

    assert delays == [500, 1_000, 2_000, 4_000, 7_500, 7_500, 7_500]


def test_a_very_long_outage_overflows_nothing() -> None:
    schedule = _schedule()
    for now in range(5_000):
        assert 1 <= schedule.passed(now, failed=True) <= 7_500


def test_after_a_success_the_next_failure_is_retried_as_soon_as_the_first() -> None:
    schedule = _schedule()
    schedule.passed(7_500, failed=True)
    schedule.passed(8_000, failed=True)
    assert schedule.passed(9_000, failed=False) == 6_000

    assert schedule.passed(15_000, failed=True) == 500


@pytest.mark.parametrize("interval", [1, 100, 499])
def test_no_retry_waits_longer_than_an_interval(interval: int) -> None:
    schedule = _schedule(interval)

    assert schedule.passed(interval, failed=True) == interval


def test_what_failed_outside_of_a_pass_is_tried_soon_and_does_not_put_off_a_planned_retry() -> None:
    schedule = _schedule()
    schedule.retry_soon(1_000)
    schedule.retry_soon(1_400)

    assert schedule.next_pass(None) == 1_500


def test_jitter_keeps_workers_apart() -> None:
    factors = {usual_jitter() for _ in range(100)}

    assert len(factors) > 50
    assert all(0.9 <= factor <= 1.1 for factor in factors)
    assert _schedule(jitter=1.1).passed(7_500, failed=True) == 550


def test_a_pause_that_would_outlast_the_first_lock_is_cut_to_half_of_what_is_left() -> None:
    schedule = Schedule(750, 0, jitter=lambda: 1.0)
    schedule.passed(1_250, failed=True, deadline=3_000)
    assert schedule.next_pass(3_000) == 1_750
    schedule.passed(2_250, failed=True, deadline=3_000)
    assert schedule.next_pass(3_000) == 2_625
    schedule = Schedule(7_500, 0, jitter=lambda: 1.0)
    schedule.passed(2_950, failed=True, deadline=3_000)
    assert schedule.next_pass(None) == 3_050  # never a busy loop
    schedule.passed(3_100, failed=True, deadline=3_000)
    assert schedule.next_pass(None) == 4_100
