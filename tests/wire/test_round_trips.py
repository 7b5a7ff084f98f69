"""How many calls a tick makes, how many ids one call serves, and what a server that forgot the scripts costs."""

from __future__ import annotations

import pytest
import redis

from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.renewal import plan_rounds
from echomq_plugin.scripts import Acquired, Batch, Scripts
from echomq_plugin.sweep_scripts import SweepScripts
from echomq_plugin.table import PendingRelease
from echomq_plugin.tracking import TrackedLock
from echomq_plugin.wire import MOST_IDS_A_CALL, chunks
from wire.renewals import DURATION, Bench
from wire.servers import Node

CAP = MOST_IDS_A_CALL


def _ids(count: int) -> list[str]:
    return [f"job-{number:05}" for number in range(count)]


# -- a tick ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 100, 1_000])
def test_a_tick_is_one_evalsha_for_all_locks_of_a_queue(real_node: Node, count: int) -> None:
    bench = Bench(real_node)
    bench.hold(_ids(count))
    bench.scripts.extend_locks([Batch(QueueKeys("emq", "mail"), [], [])], DURATION)  # connects, loads the script
    calls, reads = real_node.evalsha_calls(), real_node.reads()

    assert bench.tick() == []

    assert real_node.evalsha_calls() - calls == 1
    assert len(bench.renewed[0][1]) == count
    if count <= 100:  # small enough for one read of the server
        assert real_node.reads() - reads == 1 + 2  # the tick; and one look at each statistic


def test_a_tick_over_several_queues_is_one_round_trip_with_one_evalsha_a_queue(real_node: Node) -> None:
    bench = Bench(real_node)
    for queue in ("mail", "video", "audio"):
        bench.hold(_ids(20), queue)
    bench.scripts.extend_locks([Batch(QueueKeys("emq", "mail"), [], [])], DURATION)
    calls, reads = real_node.evalsha_calls(), real_node.reads()

    assert bench.tick() == []

    assert real_node.evalsha_calls() - calls == 3
    assert real_node.reads() - reads == 1 + 2
    assert sorted(queue for queue, _ in bench.renewed) == ["audio", "mail", "video"]


def test_a_tick_in_which_nothing_is_due_makes_no_call(real_node: Node) -> None:
    bench = Bench(real_node)
    bench.hold(["42"])
    reads = real_node.reads()

    bench.renewal.run()

    assert real_node.reads() - reads == 1


@pytest.mark.parametrize(("count", "calls"), [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (2_500, 3)])
def test_more_locks_than_a_batch_are_renewed_in_several_calls_and_none_is_left_out(
    real_node: Node, count: int, calls: int
) -> None:
    bench = Bench(real_node)
    bench.hold(_ids(count))
    bench.scripts.extend_locks([Batch(QueueKeys("emq", "mail"), [], [])], DURATION)
    before = real_node.evalsha_calls()

    assert bench.tick() == []

    assert real_node.evalsha_calls() - before == calls
    assert sorted(job_id for _, ids in bench.renewed for job_id in ids) == _ids(count)
    assert all(0 < real_node.client.pttl(f"emq:mail:{job_id}:lock") <= DURATION for job_id in _ids(count)[::97])


def test_no_round_trip_holds_more_locks_than_a_batch_whatever_their_queues() -> None:
    due = [TrackedLock(f"q{number % 7}", str(number), "t", 0, number) for number in range(1_000)]

    rounds = plan_rounds(due, 64)

    assert [sum(map(len, batches.values())) for batches in rounds] == [*[64] * 15, 40]
    planned = [lock for batches in rounds for locks in batches.values() for lock in locks]
    assert sorted(lock.job_id for lock in planned) == sorted(lock.job_id for lock in due)
    assert all(lock.queue == queue for batches in rounds for queue, locks in batches.items() for lock in locks)
    assert plan_rounds([], 64) == []


# -- a server that forgot the scripts ----------------------------------------------------------------------------------


def test_every_script_is_healed_within_the_same_call(node: Node, keys: QueueKeys) -> None:
    # Row 39.
    connections = node.connections()
    scripts, sweep, lists = Scripts(connections), SweepScripts(connections), ListScripts(connections)
    calls = [
        lambda: scripts.acquire(keys, "1", "t", DURATION, b"d") == Acquired(1),
        lambda: scripts.extend_locks([Batch(keys, ["1"], ["t"])], DURATION) == [[]],
        lambda: scripts.renew_one(keys, "1", "t", DURATION) is True,
        lambda: scripts.release(keys, "1", "t", keep_entry=True, keep_count=True) == "released",
        lambda: sweep.mark_lockless(keys, ["1"]) == [],
        lambda: sweep.mark_lockless(keys, ["1"]) == [("1", "t")],
        lambda: [job.job_id for job in sweep.claim(keys, "c", 9_000, [("1", "t")])] == ["1"],
        lambda: sweep.keep_claims(keys, "c", 9_000, ["1"]) == ["1"],
        lambda: sweep.return_claims(keys, "c", [("1", "t")]) == 1,
        lambda: sweep.drop_entries(keys, "c", [("1", "t")], forget_count=True) == 0,
        lambda: sweep.prune_counts(keys, ["1"]) == 0,
        lambda: sweep.win_check(keys, "w", 9_000, serves=True) == 0,
        lambda: scripts.restore_entries(keys, [("2", "t", b"d", 0)]) == 1,
        lambda: (
            scripts.release_many([(keys, "1", "t", "0", False), (keys, "2", "t", "0", False)])
            == ["released", "released"]
        ),
        lambda: lists.put_back("taken", "todo", b"i", run_next=True) is False,
        lambda: lists.put_back_orphans(keys, "taken", "todo", [("9", b"i")]) == 0,
    ]
    for number, call in enumerate(calls):
        node.client.script_flush()
        assert call(), number


def test_a_tick_after_a_flush_renews_all_queues_and_reports_nothing(node: Node) -> None:
    bench = Bench(node)
    for queue in ("mail", "video", "audio"):
        bench.hold(_ids(10), queue)
    for _ in range(3):
        node.client.script_flush()
        assert bench.tick() == []

    assert bench.lost == []
    assert len(bench.renewed) == 9


def test_after_a_flush_the_script_is_sent_once_and_not_for_every_queue(real_node: Node) -> None:
    bench = Bench(real_node)
    for queue in ("mail", "video", "audio"):
        bench.hold(["42"], queue)
    real_node.client.script_flush()
    real_node.client.config_resetstat()

    assert bench.tick() == []

    stats = real_node.client.info("commandstats")
    assert stats["cmdstat_eval"]["calls"] == 1


# -- batches of our own scripts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, CAP, CAP + 1])
def test_what_serves_many_jobs_serves_any_number_in_calls_of_bounded_size(
    real_node: Node, keys: QueueKeys, count: int
) -> None:
    connections = real_node.connections()
    scripts, sweep, lists = Scripts(connections), SweepScripts(connections), ListScripts(connections)
    ids, calls = _ids(count), -(-count // CAP)
    # Loads what is not loaded, so that each call is one EVALSHA.
    scripts.restore_entries(keys, [("warm", "t", b"d", 0)])
    sweep.mark_lockless(keys, ["warm"])
    sweep.prune_counts(keys, ["warm"])
    lists.put_back_orphans(keys, "taken", "todo", [("warm", b"-")])
    real_node.client.flushall()

    def counted(call: object) -> int:
        before = real_node.evalsha_calls()
        call()  # type: ignore[operator]
        return real_node.evalsha_calls() - before

    assert counted(lambda: scripts.restore_entries(keys, [(job_id, "t", b"d", 0) for job_id in ids])) == calls
    assert real_node.client.hlen(keys.held) == count
    assert counted(lambda: sweep.mark_lockless(keys, ids)) == calls
    assert [job_id for job_id, _ in sweep.mark_lockless(keys, ids)] == ids
    assert counted(lambda: sweep.prune_counts(keys, ids)) == calls
    assert [found.entry_token for found in scripts.look_up(keys, ids)] == ["t"] * count

    real_node.client.delete(keys.held)
    if ids:
        real_node.client.rpush("taken", *ids)
    items = [(job_id, job_id.encode()) for job_id in ids]
    assert counted(lambda: lists.put_back_orphans(keys, "taken", "todo", items)) == calls
    assert real_node.client.llen("todo") == count


@pytest.mark.parametrize("count", [0, 1, CAP, CAP + 1])
def test_any_number_of_releases_is_repeated_in_one_pass(real_node: Node, count: int) -> None:
    bench = Bench(real_node)
    bench.hold(_ids(count))
    for job_id in _ids(count):
        bench.table.add_release(PendingRelease("mail", job_id, f"token of {job_id}"))

    assert bench.renewal.run() == []

    assert bench.table.is_idle()
    assert real_node.client.dbsize() == 0


def test_the_scripts_of_many_ids_stay_within_the_limits_of_lua(real_node: Node, keys: QueueKeys) -> None:
    # A batch far above our own cap: nothing unpacks a list onto Lua's stack.
    bench = Bench(real_node, batch_size=20_000)
    bench.hold(_ids(20_000))

    assert bench.tick() == []

    assert len(bench.renewed[0][1]) == 20_000


def test_chunks_are_full_but_for_the_last() -> None:
    assert [list(chunk) for chunk in chunks(range(5), 2)] == [[0, 1], [2, 3], [4]]
    assert list(chunks([], 2)) == []


def test_an_error_of_one_call_among_several_leaves_the_rest_for_the_retry(
    real_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(real_node, batch_size=10)
    bench.hold(_ids(30))
    extend_locks, answers = bench.scripts.extend_locks, iter([True, False])

    def fail_in_the_second_call(batches: list[Batch], duration: int) -> object:
        if next(answers, True):
            return extend_locks(batches, duration)
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(bench.scripts, "extend_locks", fail_in_the_second_call)

    failures = bench.tick()

    assert [len(ids) for _, ids in bench.renewed] == [10]
    assert [len(failure.job_ids) for failure in failures] == [10, 10]
    assert bench.renewal.run() == []
    assert sorted(job_id for _, ids in bench.renewed for job_id in ids) == _ids(30)
