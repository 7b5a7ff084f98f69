"""The scripts of the stalled checker and of reliable lists, by tables of states, on every kind of server."""

from __future__ import annotations

from typing import Any

import pytest

from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.sweep_scripts import COUNT_KEPT_MS, Claimed, SweepScripts
from wire.servers import Node

LOCK = "emq:mail:42:lock"
HELD, DATA, CLAIM, SEEN, COUNT, CHECK = (
    f"emq:mail:{name}" for name in ("held", "held-data", "held-claim", "held-seen", "stalled-count", "held-check")
)
ENTRY = {HELD: {"42": "dead"}, DATA: {"42": "body"}}
CLAIM_MS = 40_000


@pytest.fixture
def scripts(node: Node) -> SweepScripts:
    return SweepScripts(node.connections())


# -- which queues, and whose turn --------------------------------------------------------------------------------------


def test_queues_are_known_once_added(scripts: SweepScripts) -> None:
    assert scripts.queues("emq") == []
    for queue in ("video", "mail", "mail", "jöb-☃"):
        scripts.add_queue("emq", queue)

    assert scripts.queues("emq") == ["jöb-☃", "mail", "video"]
    assert scripts.queues("another prefix") == []


def test_one_worker_wins_a_pass_and_the_others_learn_how_long_it_is_to_the_next(
    node: Node, scripts: SweepScripts, keys: QueueKeys
) -> None:
    assert scripts.win_check(keys, "A", 15_000, serves=True) == 0
    assert 0 < scripts.win_check(keys, "B", 15_000, serves=True) <= 15_000
    assert node.read() == {CHECK: "A"}

    node.client.delete(CHECK)
    assert scripts.win_check(keys, "B", 15_000, serves=True) == 0
    assert node.read() == {CHECK: "B"}


def test_a_pass_that_is_due_is_left_to_workers_that_serve_the_queue_for_a_while(
    node: Node, scripts: SweepScripts, keys: QueueKeys
) -> None:
    assert scripts.win_check(keys, "A", 15_000, serves=True) == 0
    assert 15_000 < scripts.win_check(keys, "stranger", 15_000, serves=False) <= 22_500

    node.client.pexpire(CHECK, 7_500)  # due, and in its while
    assert 0 < scripts.win_check(keys, "stranger", 15_000, serves=False) <= 7_500
    assert scripts.win_check(keys, "B", 15_000, serves=True) == 0

    node.client.delete(CHECK)
    assert scripts.win_check(keys, "stranger", 15_000, serves=False) == 0


def test_a_check_that_would_last_for_ever_is_won(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    node.client.set(CHECK, "somebody")

    assert scripts.win_check(keys, "B", 15_000, serves=True) == 0

    assert 15_000 < node.client.pttl(CHECK) <= 22_500


# -- markLockless ------------------------------------------------------------------------------------------------------

MARK = {
    "a live lock": ({**ENTRY, LOCK: "dead"}, [], {}),
    "a live lock that was missing before": ({**ENTRY, LOCK: "new", SEEN: {"42": "dead", "43": "x"}}, [], {"43": "x"}),
    "missing for the first time": (ENTRY, [], {"42": "dead"}),
    "missing twice under one token": ({**ENTRY, SEEN: {"42": "dead"}}, [("42", "dead")], {"42": "dead"}),
    "missing under another token than before": ({**ENTRY, SEEN: {"42": "older"}}, [], {"42": "dead"}),
    "not held at all": ({SEEN: {"42": "dead"}}, [], {}),
    "held without data, as a foreign hash of that name": ({HELD: {"42": "dead"}}, [], {}),
}


@pytest.mark.parametrize(("before", "dead", "seen"), MARK.values(), ids=MARK)
def test_mark_lockless(
    node: Node,
    scripts: SweepScripts,
    keys: QueueKeys,
    before: dict[str, Any],
    dead: list[tuple[str, str]],
    seen: dict[str, str],
) -> None:
    node.write(before)

    assert scripts.mark_lockless(keys, ["42"]) == dead

    after = {name: value for name, value in before.items() if name != SEEN}
    assert node.read() == ({**after, SEEN: seen} if seen else after)


# -- claimStalled ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "claimed_as", "count_after"),
    [
        (None, 1, "1 dead <past>"),
        ("1 older 1700000000000", 2, "2 dead <past>"),
        ("1 dead 1700000000000", 1, "1 dead <past>"),  # moved once for each dead token
        ("1  1700000000000", 2, "2 dead <past>"),  # given back, and claimed again
        ("41 older 1700000000000", 42, "42 dead <past>"),
    ],
)
def test_claim_moves_the_count_once_for_each_dead_token(
    node: Node, scripts: SweepScripts, keys: QueueKeys, count: str | None, claimed_as: int, count_after: str
) -> None:
    node.write(ENTRY if count is None else {**ENTRY, COUNT: {"42": count}})

    claimed = scripts.claim(keys, "sweeper", CLAIM_MS, [("42", "dead")])

    assert claimed == [Claimed("42", "dead", b"body", claimed_as)]
    assert node.read() == {**ENTRY, CLAIM: {"42": "sweeper <future>"}, COUNT: {"42": count_after}}


def test_counts_go_by_themselves_after_a_week(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    node.write(ENTRY)

    scripts.claim(keys, "sweeper", CLAIM_MS, [("42", "dead")])

    assert COUNT_KEPT_MS - 60_000 < node.client.pttl(COUNT) <= COUNT_KEPT_MS == 7 * 24 * 3600 * 1000


NOT_CLAIMED = {
    "it has a lock": {**ENTRY, LOCK: "new"},
    "another run's entry": {HELD: {"42": "new"}, DATA: {"42": "body"}},
    "no entry": {},
}


@pytest.mark.parametrize("before", NOT_CLAIMED.values(), ids=NOT_CLAIMED)
def test_not_claimed(node: Node, scripts: SweepScripts, keys: QueueKeys, before: dict[str, Any]) -> None:
    node.write(before)

    assert scripts.claim(keys, "sweeper", CLAIM_MS, [("42", "dead")]) == []

    assert node.read() == before


def test_a_live_claim_is_respected_and_one_that_ran_out_is_not(
    node: Node, scripts: SweepScripts, keys: QueueKeys
) -> None:
    node.write(
        {
            HELD: {"1": "d1", "2": "d2"},
            DATA: {"1": "b1", "2": "b2"},
            CLAIM: {"1": node.claim("other", 30_000), "2": node.claim("other", -1)},
        }
    )

    claimed = scripts.claim(keys, "sweeper", CLAIM_MS, [("1", "d1"), ("2", "d2")])

    assert [job.job_id for job in claimed] == ["2"]
    assert node.read()[CLAIM] == {"1": "other <future>", "2": "sweeper <future>"}


def test_an_entry_without_data_is_claimed_with_none(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    node.write({HELD: {"42": "dead"}})

    assert scripts.claim(keys, "sweeper", CLAIM_MS, [("42", "dead")]) == [Claimed("42", "dead", b"", 1)]


# -- keep, return, drop ------------------------------------------------------------------------------------------------


def test_claims_are_kept_while_they_are_ours(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    node.write({CLAIM: {"1": node.claim("sweeper", -5), "2": node.claim("other", -5), "4": node.claim("sweeper", 5)}})

    assert scripts.keep_claims(keys, "sweeper", CLAIM_MS, ["1", "2", "3", "4"]) == ["1", "4"]

    assert node.read()[CLAIM] == {"1": "sweeper <future>", "2": "other <past>", "4": "sweeper <future>"}


@pytest.mark.parametrize(
    ("count", "count_after"),
    [
        ("1 dead 1700000000000", None),
        ("2 dead 1700000000000", "1  <past>"),
        ("2 another 1700000000000", "2 another <past>"),
        (None, None),
    ],
)
def test_a_claim_that_is_given_back_leaves_the_count_as_it_was(
    node: Node, scripts: SweepScripts, keys: QueueKeys, count: str | None, count_after: str | None
) -> None:
    counts = {} if count is None else {COUNT: {"42": count}}
    node.write({**ENTRY, CLAIM: {"42": node.claim("sweeper", 9_000)}, **counts})

    assert scripts.return_claims(keys, "sweeper", [("42", "dead")]) == 1

    # The claim may have taken the place of this mark: a start that turns out undecided leaves the entry then.
    kept = {**ENTRY, CLAIM: {"42": "relied on: dead 0"}}
    assert node.read() == {**kept, **({} if count_after is None else {COUNT: {"42": count_after}})}


def test_a_claim_of_another_is_not_given_back(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    node.write({CLAIM: {"42": node.claim("other", 9_000)}, COUNT: {"42": "1 dead 1700000000000"}})
    before = node.read()

    assert scripts.return_claims(keys, "sweeper", [("42", "dead"), ("43", "dead")]) == 0

    assert node.read() == before


def test_a_count_is_the_same_after_any_number_of_rounds_in_which_nobody_puts_back(
    scripts: SweepScripts, node: Node, keys: QueueKeys
) -> None:
    node.write({**ENTRY, COUNT: {"42": "3 older 1700000000000"}})
    for _ in range(3):
        [claimed] = scripts.claim(keys, "sweeper", CLAIM_MS, [("42", "dead")])
        assert claimed.stalled_count == 4
        scripts.return_claims(keys, "sweeper", [("42", "dead")])

    assert node.read()[COUNT] == {"42": "3  <past>"}


@pytest.mark.parametrize("forget", [False, True], ids=["the count stays", "the count goes"])
def test_an_entry_that_is_still_the_dead_runs_and_ours_is_dropped(
    node: Node, scripts: SweepScripts, keys: QueueKeys, forget: bool
) -> None:
    counts = {COUNT: {"42": "1 dead 1700000000000", "43": "1 x 1700000000000"}}
    node.write({**ENTRY, **counts, SEEN: {"42": "dead"}, CLAIM: {"42": node.claim("sweeper", 9_000)}})

    assert scripts.drop_entries(keys, "sweeper", [("42", "dead")], forget_count=forget) == 1

    left = {"43": "1 x <past>"} if forget else {"42": "1 dead <past>", "43": "1 x <past>"}
    assert node.read() == {COUNT: left}


def test_an_entry_that_started_again_or_that_another_claimed_is_not_dropped(
    node: Node, scripts: SweepScripts, keys: QueueKeys
) -> None:
    node.write(
        {
            HELD: {"1": "new", "2": "dead", "3": "dead"},
            DATA: {"1": "b", "2": "b", "3": "b"},
            CLAIM: {"1": node.claim("sweeper", 9_000), "2": node.claim("other", 9_000)},
        }
    )

    dead = [("1", "dead"), ("2", "dead"), ("3", "dead")]
    assert scripts.drop_entries(keys, "sweeper", dead, forget_count=True) == 0

    assert node.read()[HELD] == {"1": "new", "2": "dead", "3": "dead"}


def test_old_counts_of_jobs_without_an_entry_are_forgotten(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    old, new = node.now() - COUNT_KEPT_MS - 1_000, node.now() - COUNT_KEPT_MS + 60_000
    node.write(
        {HELD: {"held": "t"}, COUNT: {"held": f"1 t {old}", "old": f"1 t {old}", "new": f"1 t {new}", "odd": "x"}}
    )

    assert scripts.prune_counts(keys, ["held", "old", "new", "odd", "none"]) == 2

    assert set(node.read()[COUNT]) == {"held", "new"}


# -- what a scan gives -------------------------------------------------------------------------------------------------


def test_a_scan_gives_every_entry_whatever_bytes_its_id_has(node: Node, scripts: SweepScripts, keys: QueueKeys) -> None:
    ids = [*(f"job-{number}" for number in range(1_500)), "jöb-☃", "a b\n", "\udcff\udcfe"]
    for job_id in ids:
        node.client.hset(HELD, job_id.encode("utf-8", "surrogateescape"), "dead")
        node.client.hset(DATA, job_id.encode("utf-8", "surrogateescape"), "body")

    found: set[str] = set()
    cursor, more = 0, True
    while more:
        cursor, some = scripts.held_ids(keys, cursor)
        found.update(some)
        more = cursor != 0

    assert found == set(ids)
    assert scripts.mark_lockless(keys, ids) == []
    assert {job_id for job_id, _ in scripts.mark_lockless(keys, ids)} == set(ids)


def test_a_scan_of_nothing_ends_at_once(scripts: SweepScripts, keys: QueueKeys) -> None:
    assert scripts.held_ids(keys, 0) == (0, [])
    assert scripts.counted_ids(keys, 0) == (0, [])


# -- reliable lists ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run_next", "todo"), [(True, ["z", "b"]), (False, ["b", "z"])], ids=["next", "last"])
def test_an_item_is_put_back_once(node: Node, run_next: bool, todo: list[str]) -> None:
    lists = ListScripts(node.connections())
    node.write({"taken": ["a", "b", "a"], "todo": ["z"]})

    assert lists.put_back("taken", "todo", b"b", run_next=run_next) is True
    assert lists.put_back("taken", "todo", b"b", run_next=run_next) is False

    assert node.read() == {"taken": ["a", "a"], "todo": todo}


def test_only_orphans_are_put_back(node: Node, keys: QueueKeys) -> None:
    lists = ListScripts(node.connections())
    node.write({"taken": ["i1", "i2", "i3"], "emq:mail:1:lock": "t", HELD: {"2": "t"}})

    items = [("1", b"i1"), ("2", b"i2"), ("3", b"i3"), ("4", b"i4")]
    assert lists.put_back_orphans(keys, "taken", "todo", items) == 1

    assert node.read()["taken"] == ["i1", "i2"]
    assert node.read()["todo"] == ["i3"]
