"""The renewal loop in virtual time: how long a lock may wait for its renewal, and what is said of it."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import gevent
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from echomq_plugin.errors import RedisCallError
from echomq_plugin.events import LocksLost
from echomq_plugin.options import LockOptions
from echomq_plugin.table import PendingRelease
from rules.virtual import Key, Trip, VirtualWorker

OPTIONS = LockOptions()  # the protocol's own numbers
DURATION = 30_000
RENEW_TIME = 15_000
TICK = 7_500
START = 1_000_000

ways = st.integers(0, OPTIONS.call_limit // 2)
good_trips = st.builds(Trip, ways, ways)
any_trips = st.builds(Trip, ways, ways, st.sampled_from(["", "", "call", "reply"]))
# When jobs start and for how long they run, in ms: clustered round the ticks as well as anywhere.
moments = st.one_of(
    st.integers(0, 60_000), st.builds(lambda tick, by: max(0, tick * TICK + by), st.integers(0, 8), st.integers(-3, 3))
)
jobs = st.lists(
    st.tuples(moments, st.integers(0, 120_000), st.sampled_from(["mail", "video"])), min_size=1, max_size=12
)


def _endless(trips: list[Trip]):
    remaining = iter(trips)
    return lambda: next(remaining, trips[-1] if trips else Trip())


@settings(max_examples=150, deadline=None)
@given(jobs=jobs, trips=st.lists(good_trips, min_size=1, max_size=40))
def test_a_lock_whose_renewals_succeed_never_waits_longer_than_the_renew_time_plus_latency(
    jobs: list[tuple[int, int, str]], trips: list[Trip]
) -> None:
    worker = VirtualWorker(OPTIONS, _endless(trips))
    latency = max(trip.there + trip.back for trip in trips)
    lives: dict[tuple[str, str], list[int]] = {}
    for number, (starts, lasts, queue) in enumerate(jobs):
        job_id = str(number)

        def start(queue: str = queue, job_id: str = job_id) -> None:
            worker.take(queue, job_id, "token-" + job_id)
            lives[queue, job_id] = [worker.clock.now]

        def end(queue: str = queue, job_id: str = job_id) -> None:
            worker.give_back(queue, job_id, "token-" + job_id)
            lives[queue, job_id].append(worker.clock.now)

        worker.clock.at(starts, start)
        worker.clock.at(starts + lasts, end)

    worker.run(200_000)

    assert worker.lost == []
    assert worker.failures == []
    renewed_at = defaultdict(list)
    for at, queue, job_id in worker.server.renewals:
        renewed_at[queue, job_id].append(at)
    for key, (began, ended) in lives.items():
        times = [began, *renewed_at[key], ended]
        worst = max(later - earlier for earlier, later in itertools.pairwise(times))
        assert worst <= RENEW_TIME + 2 * latency


@settings(max_examples=150, deadline=None)
@given(
    jobs=jobs,
    trips=st.lists(any_trips, min_size=1, max_size=60),
    harm=st.lists(st.tuples(moments, st.integers(0, 11), st.sampled_from(["delete", "steal", "restart", "forget"]))),
)
def test_whatever_happens_each_loss_is_real_is_still_ours_to_report_and_is_reported_once(
    jobs: list[tuple[int, int, str]], trips: list[Trip], harm: list[tuple[int, int, str]]
) -> None:
    worker = VirtualWorker(OPTIONS, _endless(trips))
    current: dict[tuple[str, str], str] = {}
    generations: Counter[tuple[str, str]] = Counter()

    def start(queue: str, job_id: str) -> None:
        generations[queue, job_id] += 1
        token = f"{job_id}/{generations[queue, job_id]}"
        current[queue, job_id] = token
        worker.take(queue, job_id, token)

    def end(queue: str, job_id: str) -> None:
        token = current.pop((queue, job_id), None)
        if token is not None:
            worker.give_back(queue, job_id, token)

    def do_harm(kind: str, queue: str, job_id: str) -> None:
        if kind == "restart":
            end(queue, job_id)
            start(queue, job_id)
        elif kind == "forget":  # as a failover that lost the last writes
            worker.server.locks.pop((queue, job_id), None)
            worker.server.entries.pop((queue, job_id), None)
        elif kind == "delete":
            worker.server.locks.pop((queue, job_id), None)
        elif (key := worker.server.key(queue, job_id)) is not None:
            key.token = "somebody else's"

    for number, (starts, lasts, queue) in enumerate(jobs):
        worker.clock.at(starts, lambda queue=queue, job_id=str(number): start(queue, job_id))
        worker.clock.at(starts + lasts, lambda queue=queue, job_id=str(number): end(queue, job_id))
    for at, number, kind in harm:
        if number < len(jobs):
            worker.clock.at(
                at, lambda kind=kind, queue=jobs[number][2], job_id=str(number): do_harm(kind, queue, job_id)
            )

    seen: list[tuple[str, str, str]] = []

    def outbox(report: object) -> None:
        for lost in getattr(report, "lost", ()):
            queue = report.queue  # type: ignore[attr-defined]
            seen.append((queue, lost.job_id, lost.token))
            # Neither untracked nor started again under another token.
            assert current.get((queue, lost.job_id)) == lost.token
            assert not worker.manager.is_tracked(lost.job_id, queue)

    worker.manager._outbox = outbox
    worker.run(200_000)

    assert len(seen) == len(set(seen))


@settings(max_examples=60, deadline=None)
@given(taken_before=st.integers(0, 20_000), fates=st.lists(st.sampled_from(["call", "reply"]), min_size=1))
def test_expired_is_reported_exactly_at_the_deadline(taken_before: int, fates: list[str]) -> None:
    worker = VirtualWorker(OPTIONS, _endless([Trip(0, 0, fate) for fate in fates]))
    worker.clock.at(taken_before, lambda: worker.take("mail", "42", "token"))

    worker.run(taken_before + 2 * DURATION)

    [(at, queue, lost)] = worker.lost
    assert at == START + taken_before + DURATION
    assert (queue, lost.job_id, lost.token, lost.reason, lost.held_for_ms) == (
        "mail",
        "42",
        "token",
        "expired",
        DURATION,
    )


def test_a_tick_is_one_call_for_all_due_locks_of_all_queues() -> None:
    worker = VirtualWorker(OPTIONS)
    for queue in ("mail", "video", "audio"):
        for number in range(5):
            worker.take(queue, str(number), f"token-{number}")

    worker.run(TICK + 1)
    assert worker.server.calls == 0  # strictly more than the threshold
    worker.run(TICK + 1)

    assert worker.server.calls == 1
    assert sorted((report.queue, len(report.job_ids)) for _, report in worker.renewed) == [
        ("audio", 5),
        ("mail", 5),
        ("video", 5),
    ]


def test_more_locks_than_a_batch_go_out_in_several_calls() -> None:
    worker = VirtualWorker(LockOptions(batch_size=10))
    for number in range(15):
        worker.take("mail", f"m{number}", "token")
        worker.take("video", f"v{number}", "token")
    worker.clock.pass_time(1)

    worker.run(TICK)

    assert worker.server.calls == 3
    assert len(worker.server.renewals) == 30


def test_all_losses_of_a_queue_in_one_tick_are_one_report_however_many_calls_it_took() -> None:
    worker = VirtualWorker(LockOptions(batch_size=2))
    for number in range(5):
        worker.take("mail", f"m{number}", "token")
    worker.take("video", "v", "token")
    worker.clock.pass_time(1)
    for key in list(worker.server.locks):
        worker.server.locks[key] = Key("another's", worker.clock.now + DURATION)

    worker.run(TICK)

    reports = [(report.queue, len(report.lost)) for _, report in worker.reports if isinstance(report, LocksLost)]
    assert sorted(reports) == [("mail", 5), ("video", 1)]


def test_failed_tries_come_after_half_a_second_and_then_twice_as_long_up_to_a_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("echomq_plugin.schedule.random.uniform", lambda low, high: 1.0)
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, "call"))
    worker.take("mail", "42", "token")
    worker.clock.pass_time(1)

    worker.run(DURATION)

    ticks = [at - START - 1 - TICK for at, _ in worker.failures]
    # The tick that comes in between is a try too.
    assert ticks[:6] == [0, 500, 1_500, 3_500, 7_500, 15_000]
    # Another whole pause would outlast the lock: each further one is half of what is left.
    assert ticks[6] == 15_000 + (DURATION - TICK - 1 - 15_000) // 2
    assert all(100 <= pause <= 3_750 for pause in (later - at for at, later in itertools.pairwise(ticks[6:])))
    told = [(report.retry_in_ms, report.at_risk_in_ms) for _, report in worker.failures]
    assert told[:3] == [(500, 22_499), (1_000, 21_999), (2_000, 20_999)]


def test_two_lost_replies_in_a_row_lose_no_lock() -> None:
    # Row 8.
    fates = iter(["reply", "reply"])
    worker = VirtualWorker(OPTIONS, lambda: Trip(5, 5, next(fates, "")))
    for number in range(50):
        worker.take("mail", str(number), "token")
    worker.clock.pass_time(1)

    worker.run(3 * DURATION)

    assert worker.lost == []
    assert len(worker.failures) == 2
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(worker.renewed)]
    assert max(gaps) <= RENEW_TIME + 20


def test_a_deleted_lock_is_reported_once_in_six_ticks_and_its_neighbours_go_on() -> None:
    # Row 2.
    worker = VirtualWorker(OPTIONS)
    for number in range(11):
        worker.take("mail", str(number), f"token-{number}")
    worker.clock.at(10_000, lambda: worker.server.locks.pop(("mail", "5")))

    worker.run(8 * TICK)

    assert [(queue, lost.job_id, lost.reason) for _, queue, lost in worker.lost] == [("mail", "5", "missing")]
    assert not worker.manager.is_tracked("5")
    assert worker.server.key("mail", "5") is None
    neighbours = {str(number) for number in range(11)} - {"5"}
    assert set(worker.renewed[-1][1].job_ids) == neighbours
    assert worker.failures == []


def test_after_an_outage_renewal_goes_on_and_a_job_that_is_taken_again_is_renewed_from_its_first_tick() -> None:
    # Row 5.
    down = [False]
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, "call" if down[0] else ""))
    worker.take("mail", "42", "first")
    worker.clock.at(7_000, lambda: down.__setitem__(0, True))
    worker.clock.at(17_000, lambda: down.__setitem__(0, False))
    worker.run(20_000)
    assert worker.failures != []
    assert worker.renewed != []
    assert worker.lost == []

    worker.server.locks.pop(("mail", "42"))
    worker.run(2 * TICK)
    assert [lost.token for _, _, lost in worker.lost] == ["first"]
    worker.take("mail", "42", "second")
    worker.clock.pass_time(1)
    worker.renewed.clear()
    before = len(worker.server.renewals)
    worker.run(TICK)

    assert len(worker.server.renewals) == before + 1
    assert len(worker.lost) == 1


@pytest.mark.parametrize(
    "error",
    [
        redis.ConnectionError("gone"),
        redis.ResponseError("WRONGTYPE"),
        OSError("no route"),
        ValueError("nonsense"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        gevent.Timeout(),
        gevent.Timeout(3),
        RedisCallError("renew locks", "no answer"),
        TypeError("a reply of another shape"),
    ],
    ids=lambda error: f"{type(error).__name__}({error})",
)
def test_no_error_of_a_call_ends_the_loop_and_each_is_reported_once(error: BaseException) -> None:
    # Row 6; the same through a real client is in tests/wire.
    worker = VirtualWorker(OPTIONS)
    extend_locks = worker.server.extend_locks

    def raise_once(*arguments: object) -> object:
        worker.server.extend_locks = extend_locks  # type: ignore[method-assign]
        raise error

    worker.server.extend_locks = raise_once  # type: ignore[method-assign]
    worker.take("mail", "42", "token")
    worker.clock.pass_time(1)

    worker.run(3 * TICK)

    assert [report.error for _, report in worker.failures] == [error]
    # The retry, and the first tick that finds it due again.
    assert [(at - START) // TICK for at, _ in worker.renewed] == [1, 3]
    assert worker.lost == []


def test_a_confirmed_renewal_counts_from_just_before_its_call_was_sent() -> None:
    worker = VirtualWorker(OPTIONS, lambda: Trip(300, 400))
    worker.take("mail", "42", "token")
    worker.clock.pass_time(1)
    worker.run(TICK + 1_000)

    lock = worker.manager._state().table.tracked.get("mail", "42")

    assert lock is not None
    assert lock.renewed_at == START + 1 + TICK


def test_a_lock_that_still_has_our_token_is_not_lost_but_renewed_by_its_own_key() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.take("mail", "42", "token")
    worker.take("mail", "43", "token")
    worker.server.blind_to.add(("mail", "42"))
    worker.clock.pass_time(1)

    worker.run(4 * DURATION)

    assert worker.lost == []
    assert worker.failures == []
    assert worker.manager.get_tracked_job_ids() == ["42", "43"]
    assert {job_id for _, _, job_id in worker.server.renewals} == {"42", "43"}


def test_a_suspect_that_nobody_answers_for_is_kept_until_its_deadline() -> None:
    fates = iter(["", *["call"] * 100])
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, next(fates)))
    worker.take("mail", "42", "token")
    worker.server.key("mail", "42").token = "somebody else's"  # type: ignore[union-attr]

    worker.run(2 * DURATION)

    assert [(at - START, lost.reason) for at, _, lost in worker.lost] == [(DURATION, "expired")]


def test_a_server_that_forgot_lock_and_entry_gets_the_entry_again() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.take("mail", "42", "token")
    worker.clock.at(100, lambda: (worker.server.locks.clear(), worker.server.entries.clear()))

    worker.run(3 * TICK)

    assert [(lost.job_id, lost.reason) for _, _, lost in worker.lost] == [("42", "missing")]
    assert worker.server.entries == {("mail", "42"): "token"}


def test_a_lock_that_went_while_its_entry_stayed_is_lost_and_nothing_is_written() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.take("mail", "42", "token")
    worker.server.locks.clear()
    worker.server.entries["mail", "42"] = "the next run's"

    worker.run(3 * TICK)

    assert [lost.reason for _, _, lost in worker.lost] == ["missing"]
    assert worker.server.entries == {("mail", "42"): "the next run's"}


def test_an_entry_that_could_not_be_written_is_tried_again_and_the_loss_is_told_afterwards() -> None:
    fates = iter(["", "", "call"])  # the renewal, the look-up, the entry
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, next(fates, "")))
    worker.take("mail", "42", "token")
    worker.server.locks.clear()
    worker.server.entries.clear()
    worker.clock.pass_time(1)

    worker.run(TICK + 100)
    assert worker.lost == []
    assert len(worker.failures) == 1
    worker.run(2 * TICK)

    assert [lost.reason for _, _, lost in worker.lost] == ["missing"]
    assert worker.server.entries == {("mail", "42"): "token"}


def test_a_job_that_ends_while_its_entry_is_written_again_leaves_no_entry_behind() -> None:
    trips = iter([Trip(), Trip(), Trip(there=0, back=50)])
    worker = VirtualWorker(OPTIONS, lambda: next(trips, Trip()))
    worker.take("mail", "42", "token")
    worker.server.locks.clear()
    worker.server.entries.clear()
    worker.clock.pass_time(1)
    # The job ends when the entry has been written and the reply is on its way.
    worker.clock.at(TICK + 20, lambda: worker.manager.untrack("mail", "42", "token"))

    worker.run(2 * TICK)

    assert worker.lost == []
    assert worker.server.entries == {}


def test_a_release_without_an_answer_is_repeated_until_there_is_one_and_its_lock_is_renewed_meanwhile() -> None:
    down = [True]
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, "call" if down[0] else ""))
    worker.take("mail", "42", "token")
    worker.clock.at(2_000, lambda: worker.manager.release_later(PendingRelease("mail", "42", "token")))
    worker.clock.at(20_000, lambda: down.__setitem__(0, False))

    worker.run(2 * DURATION)

    assert worker.server.released == [("42", "token")]
    assert worker.server.locks == {}
    assert worker.manager.wait_until_idle(0)
    assert worker.manager.get_tracked_job_ids() == []
    assert worker.lost == []


def test_the_lock_of_a_job_that_has_ended_is_not_reported_lost_when_its_deadline_comes_first() -> None:
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, "call"))
    worker.take("mail", "42", "token")
    worker.clock.at(2_000, lambda: worker.manager.release_later(PendingRelease("mail", "42", "token")))

    worker.run(2 * DURATION)

    assert worker.lost == []
    assert not worker.manager.wait_until_idle(0)  # the release still waits for its answer


def test_a_lock_whose_age_is_unknown_is_renewed_at_once() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.server.locks["mail", "42"] = Key("the host's own", START + 1_000)
    worker.clock.at(
        3_000, lambda: worker.server.locks.__setitem__(("mail", "42"), Key("the host's own", START + 9_000))
    )
    worker.clock.at(3_001, lambda: worker.manager.track("mail", "42", "the host's own", renew_now=True))

    worker.run(3_100)

    assert worker.server.renewals == [(START + 3_001, "mail", "42")]
    assert worker.lost == []


def test_a_lock_whose_age_is_unknown_has_a_whole_lock_duration_to_be_asked_about() -> None:
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, 0, "call"))
    worker.clock.at(1_000, lambda: worker.manager.track("mail", "42", "the host's own", renew_now=True))

    worker.run(1_000 + DURATION - 1)
    assert worker.lost == []
    assert worker.manager.believes("mail", "42", "the host's own")
    worker.run(DURATION)

    assert [(at - START, lost.reason) for at, _, lost in worker.lost] == [(1_000 + DURATION, "expired")]
    assert not worker.manager.believes("mail", "42", "the host's own")


def test_a_lock_that_had_run_out_before_it_was_handed_over_is_found_out_at_once() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.server.locks["mail", "42"] = Key("another's", START + 10 * DURATION)
    worker.clock.at(3_001, lambda: worker.manager.track("mail", "42", "the host's own", renew_now=True))

    worker.run(3_100)

    assert [(at - START, lost.reason) for at, _, lost in worker.lost] == [(3_001, "taken")]


def test_a_hung_job_is_reported_at_its_limit_and_let_go_after_its_grace() -> None:
    # Row 11.
    worker = VirtualWorker(LockOptions(max_hold_ms=60_000, max_hold_grace_ms=10_000))
    worker.take("mail", "42", "token")

    worker.run(65_000)
    assert [(at - START, lost.reason, lost.held_for_ms) for at, _, lost in worker.lost] == [
        (60_000, "held_too_long", 60_000)
    ]
    assert worker.manager.is_tracked("42")  # its job is being cancelled, and nobody may start it meanwhile
    worker.run(60_000)

    assert len(worker.lost) == 1
    assert not worker.manager.is_tracked("42")
    assert worker.server.renewals[-1][0] < START + 70_000


def test_without_a_limit_a_hung_job_is_held_for_ever() -> None:
    worker = VirtualWorker(OPTIONS)
    worker.take("mail", "42", "token")

    worker.run(24 * 3600 * 1000)

    assert worker.manager.is_tracked("42")
    assert worker.server.key("mail", "42") is not None


def test_a_late_tick_says_by_how_much_in_its_reports() -> None:
    # Row 12: what a hub that is blocked does to a manager on the caller's hub.
    worker = VirtualWorker(OPTIONS)
    worker.take("mail", "42", "token")
    wait, slept = worker.clock.wait, iter([40_000])
    worker.clock.wait = lambda ms: wait(next(slept, ms))  # type: ignore[method-assign]

    worker.run(50_000)

    # It overslept the ms on which it was to wake as well.
    assert [(lost.reason, lost.hub_blocked_ms) for _, _, lost in worker.lost] == [("missing", 40_000 - TICK + 1)]
    assert worker.server.renewals == []  # nothing is silently taken again


@pytest.mark.parametrize("pass_ms", [3_000, 4_000, 5_250, 6_000, 7_000])
def test_a_deadline_that_came_during_a_pass_without_an_answer_is_excused_for_one_more_pass(pass_ms: int) -> None:
    # Each pass ended too late for the next to be on time, and while the server was silent the lock was never lost.
    worker = VirtualWorker(OPTIONS, lambda: Trip(0, pass_ms, "call"))
    worker.take("mail", "42", "token")

    worker.run(2 * DURATION)

    [(at, _, lost)] = worker.lost
    assert lost.reason == "expired"
    assert DURATION <= at - START <= DURATION + 2 * pass_ms
