"""The scripts that take, keep and give back locks, by tables of states, on every kind of server."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import redis

from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.lua_files import lua_script
from echomq_plugin.scripts import Acquired, Batch, HeldElsewhere, Ownership, Scripts
from echomq_plugin.wire import text
from wire.servers import LIFE_MS, Node

LOCK = "emq:mail:42:lock"
HELD, DATA, CLAIM, SEEN, COUNT, FENCE = (
    f"emq:mail:{name}" for name in ("held", "held-data", "held-claim", "held-seen", "stalled-count", "fence")
)


@pytest.fixture
def scripts(node: Node) -> Scripts:
    return Scripts(node.connections())


# -- extendLocks-1, as the protocol has it -----------------------------------------------------------------------------

EXTEND = {
    "nothing to renew": ({}, [], [], {}),
    "ours is renewed": ({LOCK: "t"}, [("42", "t")], [], {LOCK: "t"}),
    "ours leaves the stalled set": (
        {LOCK: "t", "emq:mail:stalled": {"42", "43"}},
        [("42", "t")],
        [],
        {LOCK: "t", "emq:mail:stalled": {"43"}},
    ),
    "another's fails and is left alone": ({LOCK: "other"}, [("42", "t")], ["42"], {LOCK: "other"}),
    "a failed one stays in the stalled set": (
        {LOCK: "other", "emq:mail:stalled": {"42"}},
        [("42", "t")],
        ["42"],
        {LOCK: "other", "emq:mail:stalled": {"42"}},
    ),
    "a missing one fails and is not made again": ({}, [("42", "t")], ["42"], {}),
    "failed ids come in the order they were sent": (
        {"emq:mail:2:lock": "t2"},
        [("3", "t3"), ("2", "t2"), ("1", "t1")],
        ["3", "1"],
        {"emq:mail:2:lock": "t2"},
    ),
    "each id is judged by its own token": (
        {"emq:mail:1:lock": "a", "emq:mail:2:lock": "b"},
        [("1", "b"), ("2", "a")],
        ["1", "2"],
        {"emq:mail:1:lock": "a", "emq:mail:2:lock": "b"},
    ),
}


@pytest.mark.parametrize(("before", "locks", "failed", "after"), EXTEND.values(), ids=EXTEND)
def test_extend_locks(
    node: Node,
    scripts: Scripts,
    keys: QueueKeys,
    before: dict[str, Any],
    locks: list[tuple[str, str]],
    failed: list[str],
    after: dict[str, Any],
) -> None:
    node.write(before)

    replies = scripts.extend_locks([Batch(keys, [job for job, _ in locks], [token for _, token in locks])], 30_000)

    assert replies == [failed]
    assert node.read() == after
    for job, _ in locks:
        if job not in failed:
            assert 20_000 < node.client.pttl(keys.lock(job)) <= 30_000
        else:
            # Neither made longer nor shorter.
            assert node.client.pttl(keys.lock(job)) == -2 or node.client.pttl(keys.lock(job)) > LIFE_MS - 20_000


def test_extend_locks_gives_a_life_to_a_lock_that_had_none(node: Node, scripts: Scripts, keys: QueueKeys) -> None:
    node.client.set(LOCK, "t")

    assert scripts.extend_locks([Batch(keys, ["42"], ["t"])], 30_000) == [[]]

    assert 20_000 < node.client.pttl(LOCK) <= 30_000


def test_extend_locks_takes_one_key_and_packed_text_and_returns_a_list(node: Node) -> None:
    # What other runtimes send, word for word; arrays in the long form too.
    node.write({LOCK: "t" * 36, "emq:mail:43:lock": "t" * 300})
    ids, tokens = ["42", "43", *map(str, range(100, 120))], ["t" * 36, "t" * 300, *["x"] * 20]
    words = ("emq:mail:stalled", "emq:mail:", msgpack.packb(tokens), msgpack.packb(ids), 30_000)

    reply = node.client.eval(lua_script("extendLocks-1").body, 1, *words)

    assert reply == [str(number).encode() for number in range(100, 120)]


def test_one_item_of_type_bin_fails_the_whole_script_and_renews_nothing(node: Node) -> None:
    # Why ids and tokens are made text at the door: row 53.
    node.write({LOCK: "t", "emq:mail:43:lock": "t"})
    words = ("emq:mail:stalled", "emq:mail:", msgpack.packb(["t", "t"]), msgpack.packb(["42", b"43"]), 1_000)

    with pytest.raises(redis.ResponseError, match="Bad data format"):
        node.client.eval(lua_script("extendLocks-1").body, 1, *words)

    assert node.client.pttl(LOCK) > 1_000


def test_a_nil_among_the_ids_cuts_the_list_short_without_a_word(node: Node) -> None:
    node.write({LOCK: "t", "emq:mail:43:lock": "t"})
    words = ("emq:mail:stalled", "emq:mail:", msgpack.packb(["t", "t", "t"]), msgpack.packb(["42", None, "43"]), 1_000)

    assert node.client.eval(lua_script("extendLocks-1").body, 1, *words) == []

    assert node.client.pttl("emq:mail:43:lock") > 1_000  # neither renewed nor reported


def test_a_token_that_is_missing_from_the_list_fails_its_id(node: Node) -> None:
    node.write({LOCK: "t"})
    words = ("emq:mail:stalled", "emq:mail:", msgpack.packb([]), msgpack.packb(["42", "43"]), 1_000)

    assert node.client.eval(lua_script("extendLocks-1").body, 1, *words) == [b"42", b"43"]


def test_the_batches_of_several_queues_are_answered_one_by_one(node: Node, scripts: Scripts, keys: QueueKeys) -> None:
    video = QueueKeys("emq", "video")
    node.write({LOCK: "t", "emq:video:42:lock": "other"})

    replies = scripts.extend_locks([Batch(keys, ["42"], ["t"]), Batch(video, ["42"], ["t"]), Batch(keys, [], [])], 500)

    assert replies == [[], ["42"], []]


@pytest.mark.parametrize("known", [True, False], ids=["script known", "script flushed"])
def test_a_queue_whose_script_fails_does_not_touch_the_other_queues(
    node: Node, scripts: Scripts, keys: QueueKeys, known: bool
) -> None:
    video = QueueKeys("emq", "video")
    node.client.script_flush()
    if known:
        scripts.extend_locks([Batch(keys, [], [])], 30_000)
    node.write({LOCK: "t", "emq:video:42:lock": ["not a lock"]})

    renewed, failed = scripts.extend_locks([Batch(keys, ["42"], ["t"]), Batch(video, ["42"], ["t"])], 30_000)

    assert renewed == []
    assert isinstance(failed, RedisCallError)
    assert "WRONGTYPE" in failed.reason
    assert node.client.pttl(LOCK) <= 30_000


# -- acquireLock-6 -----------------------------------------------------------------------------------------------------

TAKEN_STATE = {LOCK: "t", HELD: {"42": "t"}, DATA: {"42": "new"}}

ACQUIRE_TAKES = {
    "a free job": ({}, {**TAKEN_STATE, FENCE: "1"}),
    "the same token again, as after a lost reply": (
        {LOCK: "t", HELD: {"42": "t"}, DATA: {"42": "old"}, FENCE: "7"},
        {**TAKEN_STATE, FENCE: "8"},
    ),
    "a dead run's job": (
        {HELD: {"42": "dead"}, DATA: {"42": "old"}, CLAIM: {"42": "c 1", "43": "c 1"}, SEEN: {"42": "dead", "43": "x"}},
        {**TAKEN_STATE, CLAIM: {"42": "relied on: t 0", "43": "c 1"}, SEEN: {"43": "x"}, FENCE: "1"},
    ),
    "a job that has stalled: its count stays": (
        {COUNT: {"42": "1 dead 5"}},
        {**TAKEN_STATE, COUNT: {"42": "1 dead 5"}, FENCE: "1"},
    ),
}


@pytest.mark.parametrize(("before", "after"), ACQUIRE_TAKES.values(), ids=ACQUIRE_TAKES)
def test_acquire_takes(
    node: Node, scripts: Scripts, keys: QueueKeys, before: dict[str, Any], after: dict[str, Any]
) -> None:
    node.write(before)

    answer = scripts.acquire(keys, "42", "t", 30_000, b"new")

    assert answer == Acquired(int(after[FENCE]))
    assert node.read() == after
    assert 20_000 < node.client.pttl(LOCK) <= 30_000


ACQUIRE_DENIED = {
    "held, with the holder's entry": (
        {LOCK: "other", HELD: {"42": "other"}, DATA: {"42": "body"}},
        ("other", "other", b"body"),
    ),
    "held, with an older entry": (
        {LOCK: "other", HELD: {"42": "dead"}, DATA: {"42": "body"}},
        ("other", "dead", b"body"),
    ),
    "held, without an entry": ({LOCK: "other"}, ("other", None, None)),
    "held, with an entry without data": ({LOCK: "other", HELD: {"42": "other"}}, ("other", "other", None)),
}


@pytest.mark.parametrize(("before", "told"), ACQUIRE_DENIED.values(), ids=ACQUIRE_DENIED)
def test_acquire_denied(
    node: Node, scripts: Scripts, keys: QueueKeys, before: dict[str, Any], told: tuple[str, str | None, bytes | None]
) -> None:
    node.write(before)

    answer = scripts.acquire(keys, "42", "t", 30_000, b"new")

    assert isinstance(answer, HeldElsewhere)
    assert (answer.token, answer.entry_token, answer.entry_data) == told
    assert 0 < answer.left_ms <= LIFE_MS
    # The denied delivery may be dropped for the sake of the holder's entry, which says so.
    relied_on = {CLAIM: {"42": "relied on: other 0"}} if answer.entry_token == "other" else {}
    assert node.read() == {**before, **relied_on}


# -- releaseLock-6 -----------------------------------------------------------------------------------------------------

ALL_OURS = {
    LOCK: "t", HELD: {"42": "t", "43": "x"}, DATA: {"42": "b", "43": "x"}, CLAIM: {"42": "c 1", "43": "c 1"},
    SEEN: {"42": "t", "43": "x"}, COUNT: {"42": "1 dead 5", "43": "1 dead 5"},
}  # fmt: skip
NEIGHBOUR = {HELD: {"43": "x"}, DATA: {"43": "x"}, CLAIM: {"43": "c 1"}, SEEN: {"43": "x"}, COUNT: {"43": "1 dead 5"}}
OTHERS = {LOCK: "other", HELD: {"42": "other"}, DATA: {"42": "b"}, COUNT: {"42": "1 dead 5"}}
ENTRY_ONLY = {HELD: {"42": "t"}, DATA: {"42": "b"}}

RELEASE = {
    "all goes": (ALL_OURS, (False, False), "released", NEIGHBOUR),
    "the count stays": (ALL_OURS, (False, True), "released", {**NEIGHBOUR, COUNT: ALL_OURS[COUNT]}),
    "the entry stays": (
        ALL_OURS,
        (True, True),
        "released",
        {name: value for name, value in ALL_OURS.items() if name != LOCK},
    ),
    "a lock without an entry": ({LOCK: "t"}, (False, False), "released", {}),
    "a lock whose entry is another's": (
        {LOCK: "t", HELD: {"42": "other"}},
        (False, False),
        "released",
        {HELD: {"42": "other"}},
    ),
    "the lock ran out, the entry is ours": (ENTRY_ONLY, (False, False), "released", {}),
    "the lock ran out, the entry is ours and stays": (ENTRY_ONLY, (True, True), "released", ENTRY_ONLY),
    "another's": (OTHERS, (False, False), "lost", OTHERS),
    "the lock ran out, the entry is another's": (
        {HELD: {"42": "other"}, DATA: {"42": "b"}},
        (False, False),
        "lost",
        {HELD: {"42": "other"}, DATA: {"42": "b"}},
    ),
    "neither lock nor entry": ({COUNT: {"42": "1 dead 5"}}, (False, False), "gone", {COUNT: {"42": "1 dead 5"}}),
}


@pytest.mark.parametrize(("before", "keep", "reply", "after"), RELEASE.values(), ids=RELEASE)
def test_release(
    node: Node,
    scripts: Scripts,
    keys: QueueKeys,
    before: dict[str, Any],
    keep: tuple[bool, bool],
    reply: str,
    after: dict[str, Any],
) -> None:
    node.write(before)

    assert scripts.release(keys, "42", "t", keep_entry=keep[0], keep_count=keep[1]) == reply

    assert node.read() == after


@pytest.mark.parametrize(("ends_in_ms", "reply"), [(50_000, "lost"), (-50_000, "released")], ids=["live", "run out"])
def test_release_of_an_entry_that_somebody_is_putting_back(
    node: Node, scripts: Scripts, keys: QueueKeys, ends_in_ms: int, reply: str
) -> None:
    node.write({**ENTRY_ONLY, CLAIM: {"42": node.claim("sweeper", ends_in_ms)}})
    before = node.read()

    assert scripts.release(keys, "42", "t", keep_entry=False, keep_count=False) == reply

    assert node.read() == (before if reply == "lost" else {})


def test_many_releases_are_answered_one_by_one(node: Node, scripts: Scripts, keys: QueueKeys) -> None:
    video = QueueKeys("emq", "video")
    node.write({LOCK: "t", "emq:video:1:lock": "other", "emq:video:2:lock": ["not a lock"]})

    answers = scripts.release_many(
        [
            (keys, "42", "t", "0", False),
            (video, "1", "t", "0", False),
            (video, "2", "t", "0", False),
            (video, "3", "t", "0", False),
        ]
    )

    assert answers[:2] == ["released", "lost"]
    assert isinstance(answers[2], RedisCallError)
    assert answers[3] == "gone"
    assert scripts.release_many([]) == []


# -- the small ones ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "renewed"), [({LOCK: "t"}, True), ({LOCK: "other"}, False), ({}, False)])
def test_renew_one(node: Node, scripts: Scripts, keys: QueueKeys, before: dict[str, Any], renewed: bool) -> None:
    node.write(before)

    assert scripts.renew_one(keys, "42", "t", 20_000) is renewed

    assert node.read() == before
    if before:
        assert (node.client.pttl(LOCK) <= 20_000) is renewed


@pytest.mark.parametrize(("before", "ours"), [({LOCK: "t"}, True), ({LOCK: "other"}, False), ({}, False)])
def test_confirm(node: Node, scripts: Scripts, keys: QueueKeys, before: dict[str, Any], ours: bool) -> None:
    node.write(before)

    assert scripts.confirm(keys, "42", "t") is ours


def test_look_up(node: Node, scripts: Scripts, keys: QueueKeys) -> None:
    node.write({"emq:mail:1:lock": "a", "emq:mail:2:lock": "b", HELD: {"2": "b", "3": "c"}})

    assert scripts.look_up(keys, ["1", "2", "3", "4"]) == [
        Ownership("a", None),
        Ownership("b", "b"),
        Ownership(None, "c"),
        Ownership(None, None),
    ]
    assert scripts.look_up(keys, []) == []


def test_restore_entries_writes_only_what_nobody_knows_of(node: Node, scripts: Scripts, keys: QueueKeys) -> None:
    before = {"emq:mail:1:lock": "a", HELD: {"2": "b"}, DATA: {"2": "their data"}, FENCE: "5"}
    node.write(before)

    # The counter tells a start that the server forgot (6) from one after which another run has ended the job (5).
    jobs = [("1", "t1", b"d1", 0), ("2", "t2", b"d2", 0), ("3", "t3", b"d3", 0), ("4", "t4", b"d4", 6)]
    written = scripts.restore_entries(keys, [*jobs, ("5", "t5", b"d5", 5)])

    assert written == 2
    assert node.read() == {
        **before,
        HELD: {"2": "b", "3": "t3", "4": "t4"},
        DATA: {"2": "their data", "3": "d3", "4": "d4"},
    }
    assert scripts.restore_entries(keys, []) == 0


# -- replies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [None, 0, 1, b"OK", "OK", {}, {b"42"}, [1], [None], [[b"42"]]], ids=repr)
def test_a_reply_that_is_no_list_of_ids_is_an_error_and_never_means_renewed(keys: QueueKeys, reply: object) -> None:
    class Client:
        def execute_command(self, *words: object) -> object:
            return reply

    class Answering(Connections):
        def call(self, operation: str, work: Any, *, limit_ms: int | None = None) -> Any:
            return work(Client())

    scripts = Scripts(Answering("redis://never-connected", call_limit_ms=1_000))

    [result] = scripts.extend_locks([Batch(keys, ["42"], ["t"])], 30_000)

    assert isinstance(result, RedisCallError)
    assert isinstance(result.__cause__, TypeError)


@pytest.mark.parametrize(
    ("raw", "decoded"), [(b"42", "42"), ("42", "42"), ("jöb".encode(), "jöb"), (b"\xff\xfe", "\udcff\udcfe")]
)
def test_text_of_a_reply_is_decoded_whatever_its_bytes(raw: bytes | str, decoded: str) -> None:
    assert text(raw) == decoded
