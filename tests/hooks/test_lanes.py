"""Lanes: each report is dealt with exactly once, by the host's hub while it turns, else by a native thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import gevent
import pytest

from echomq_plugin.callers import Caller
from echomq_plugin.errors import HookTimeLimitError
from echomq_plugin.lanes import HUB_MAY_TAKE_S, Lane
from echomq_plugin.native import allocate_lock, native_sleep, pause, start_thread, thread_id


def until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        pause(0.005)


def until_without_turning_the_hub(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        native_sleep(0.005)


class Handled:
    """Notes each report with the native thread that dealt with it."""

    def __init__(self) -> None:
        self.by_thread: list[tuple[object, int]] = []
        self.callers: list[Caller] = []

    def __call__(self, report: object, caller: Caller) -> None:
        self.callers.append(caller)
        self.by_thread.append((report, thread_id()))

    @property
    def reports(self) -> list[object]:
        return [report for report, _ in self.by_thread]


@pytest.fixture
def handled() -> Handled:
    return Handled()


def test_a_hub_that_turns_takes_all_reports_in_their_order(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    lane.use_this_hub()
    for number in range(100):
        lane.post(number)

    until(lambda: len(handled.reports) == 100)
    lane.finish()

    assert handled.by_thread == [(number, thread_id()) for number in range(100)]


def test_without_a_hub_a_native_thread_takes_all_reports_in_their_order_at_once(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    began = time.monotonic()
    for number in range(100):
        lane.post(number)

    until_without_turning_the_hub(lambda: len(handled.reports) == 100)
    lane.finish()

    assert handled.reports == list(range(100))
    assert {thread for _, thread in handled.by_thread} != {thread_id()}
    # A report waits for a second only where a hub may take it.
    assert time.monotonic() - began < 30


def test_what_a_hub_that_does_not_turn_leaves_lying_a_native_thread_takes_exactly_once(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    lane.use_this_hub()
    for number in range(10):
        lane.post(number)

    until_without_turning_the_hub(lambda: len(handled.reports) == 10)
    pause(0.05)  # the hub turns at last, and finds nothing left
    lane.finish()

    assert handled.reports == list(range(10))
    assert thread_id() not in {thread for _, thread in handled.by_thread}


def test_a_hub_that_was_destroyed_is_left_for_the_native_thread(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    ready = allocate_lock()
    ready.acquire()

    def open_on_a_hub_that_ends() -> None:
        lane.use_this_hub()
        gevent.get_hub().destroy(destroy_loop=True)
        ready.release()

    start_thread(open_on_a_hub_that_ends)
    ready.acquire()
    for number in range(5):
        lane.post(number)

    until(lambda: len(handled.reports) == 5)
    lane.stop()

    assert handled.reports == list(range(5))


def test_reports_of_many_native_threads_are_each_dealt_with_exactly_once(handled: Handled) -> None:
    lane: Lane[tuple[int, int]] = Lane(handled)
    lane.use_this_hub()

    def post_some(base: int) -> Callable[[], None]:
        def run() -> None:
            for number in range(250):
                lane.post((base, number))

        return run

    for base in range(4):
        start_thread(post_some(base))
    # The hub turns, stands still for longer than it may, and turns again.
    pause(0.002)
    native_sleep(HUB_MAY_TAKE_S + 0.2)
    until(lambda: len(handled.reports) >= 1_000)
    lane.finish()

    assert set(Counter(handled.reports).values()) == {1}
    assert len(handled.reports) == 1_000
    for base in range(4):
        assert [number for of, number in handled.reports if of == base] == list(range(250))  # type: ignore[misc]


def test_under_pressure_only_droppable_reports_are_dropped(handled: Handled) -> None:
    gate = allocate_lock()
    gate.acquire()

    def handle(report: str, caller: Caller) -> None:
        if report == "first":
            gate.acquire()
        handled(report, caller)

    lane: Lane[str] = Lane(handle, most_waiting=10, droppable=lambda report: report.startswith("renewed"))
    lane.post("first")
    until_without_turning_the_hub(lambda: not lane._waiting)
    for number in range(50):
        lane.post(f"renewed {number}")
        lane.post(f"lost {number}")
    gate.release()
    until_without_turning_the_hub(lambda: handled.reports[-1:] == ["lost 49"])
    lane.finish()

    assert [report for report in handled.reports if str(report).startswith("lost")] == [
        f"lost {number}" for number in range(50)
    ]
    assert lane.dropped == 45
    assert len(handled.reports) == 1 + 50 + 5


@pytest.mark.parametrize("on_hub", [True, False], ids=["hub", "native"])
def test_a_handler_that_raises_costs_one_report(on_hub: bool) -> None:
    seen: list[int] = []

    def handle(report: int, caller: Caller) -> None:
        seen.append(report)
        raise ValueError(report)

    lane: Lane[int] = Lane(handle)
    if on_hub:
        lane.use_this_hub()
    for number in range(3):
        lane.post(number)

    until(lambda: len(seen) == 3)
    lane.finish()

    assert seen == [0, 1, 2]


def test_finish_delivers_what_waits_and_a_later_post_starts_anew(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    lane.use_this_hub()
    lane.post(1)

    lane.finish()
    assert handled.reports == [1]

    lane.post(2)
    until(lambda: handled.reports == [1, 2])
    lane.stop()
    until(lambda: not lane._thread_runs)


def test_a_finished_lane_leaves_no_watcher_on_the_hub(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    lane.use_this_hub()
    watcher = lane._watcher
    assert watcher.active

    lane.finish()

    assert lane._watcher is None
    assert not watcher.active


def test_posting_does_not_raise_when_there_are_no_threads_to_be_had(
    handled: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(body: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    lane: Lane[int] = Lane(handled)
    with monkeypatch.context() as patch:
        patch.setattr("echomq_plugin.lanes.start_thread", no_thread)
        lane.post(1)
    lane.post(2)

    until(lambda: handled.reports == [1, 2])
    lane.finish()


def test_opening_a_lane_twice_on_one_hub_makes_one_watcher(handled: Handled) -> None:
    lane: Lane[int] = Lane(handled)
    lane.use_this_hub()
    watcher = lane._watcher

    lane.use_this_hub()

    assert lane._watcher is watcher
    lane.finish()


# -- callers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["hub", "native"])
def call(request: pytest.FixtureRequest) -> Callable[[Callable[[], object], int], object]:
    """Call a function through the caller of each kind of lane."""

    def called(function: Callable[[], object], limit_ms: int) -> object:
        result: list[tuple[object, BaseException | None]] = []

        def handle(report: object, caller: Caller) -> None:
            try:
                result.append((caller.call(function, limit_ms), None))
            except BaseException as error:
                result.append((None, error))

        lane: Lane[object] = Lane(handle)
        if request.param == "hub":
            lane.use_this_hub()
        lane.post(None)
        until(lambda: result)
        lane.finish()
        value, error = result[0]
        if error is not None:
            raise error
        return value

    return called


def test_a_caller_returns_what_the_function_returns(call: Callable[[Callable[[], object], int], object]) -> None:
    assert call(lambda: {"a": 1}, 5_000) == {"a": 1}


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(2), gevent.GreenletExit(), gevent.Timeout()]
)
def test_a_caller_raises_what_the_function_raises(
    call: Callable[[Callable[[], object], int], object], error: BaseException
) -> None:
    def function() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        call(function, 5_000)

    assert caught.value is error


def test_a_caller_gives_up_on_a_function_after_its_limit(call: Callable[[Callable[[], object], int], object]) -> None:
    with pytest.raises(HookTimeLimitError, match="did not return within 50 ms") as caught:
        call(lambda: gevent.sleep(20), 50)

    assert caught.value.limit_ms == 50


def test_a_native_function_that_never_returned_does_not_hold_up_the_next_one() -> None:
    gate = allocate_lock()
    gate.acquire()
    seen: list[object] = []

    def handle(report: object, caller: Caller) -> None:
        try:
            seen.append(caller.call(gate.acquire if report == "stuck" else lambda: report, 100))
        except HookTimeLimitError as error:
            seen.append(error)

    lane: Lane[object] = Lane(handle)
    for report in ("first", "stuck", "next", "last"):
        lane.post(report)
    until_without_turning_the_hub(lambda: len(seen) == 4)
    gate.release()
    lane.finish()

    assert seen[0] == "first"
    assert isinstance(seen[1], HookTimeLimitError)
    assert seen[2:] == ["next", "last"]
