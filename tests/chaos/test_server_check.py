"""What start refuses, what it warns of, and that it says what to do."""

from __future__ import annotations

import logging

import pytest
import redis
from faults.proxy import FaultProxy, delay, every_command, named, reply, script

from echomq_plugin import LockOptions, attach
from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import RedisCallError, ServerUnsuitableError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.server_check import PERMISSIONS, check_server

QUEUES = [QueueKeys("emq", "mail")]
LIMIT_MS = 2_000


def check(connection: object) -> object:
    connections = Connections(connection, call_limit_ms=LIMIT_MS)
    try:
        return check_server(connections, QUEUES)
    finally:
        connections.close_thread()


@pytest.fixture
def user(client: redis.Redis):
    """Make a user who may do what is written, and return a client of theirs."""
    made = []

    def make(*rules: str) -> redis.Redis:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rules)
        kwargs = client.connection_pool.connection_kwargs
        theirs = redis.Redis(port=kwargs["port"], username="worker", password="secret")
        made.append(theirs)
        return theirs

    yield make
    for each in made:
        each.close()
    client.execute_command("ACL", "DELUSER", "worker")


def test_a_good_server_is_named_and_gives_no_warning(client: redis.Redis, server: EmbeddedServer) -> None:
    report = check(server.url)
    assert report.kind in ("redis", "valkey")
    assert report.version[0].isdigit()
    assert report.warnings == ()
    assert client.keys() == []


def test_the_permissions_that_the_error_names_are_enough(user) -> None:
    rules = PERMISSIONS.replace("<prefix>", "emq").split()
    plugin_user = user(*rules)
    assert check(plugin_user).warnings == ()


@pytest.mark.parametrize(
    ("rules", "named_in_the_error"),
    [
        ("~emq:* +get +set +del", "evalsha"),
        ("~emq:* +get +set +del +evalsha", "eval"),
        ("~emq:* +@all -hset", "+hset"),
        ("~emq:* +@all -pttl -hexists", "+pttl +hexists"),
        ("~emq:* +@all -hscan", "hscan"),
        ("~other:* +@all", ""),
    ],
    ids=["no scripts", "no eval", "a command of a script", "two commands", "a command outside of scripts", "keys"],
)
def test_a_user_who_may_too_little_is_refused_once_with_what_to_grant(user, rules, named_in_the_error) -> None:
    with pytest.raises(ServerUnsuitableError) as refused:
        check(user(*rules.split()))
    assert named_in_the_error in str(refused.value)
    assert "grant it +evalsha" in str(refused.value)


def test_a_user_without_info_is_served_all_the_same(user) -> None:
    report = check(user("~emq:*", "+@all", "-info"))
    assert (report.kind, report.version) == ("", "")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_drops_any_key_when_full_is_refused(own_server: EmbeddedServer, policy: str) -> None:
    with redis.Redis(port=own_server.port) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", policy)
    with pytest.raises(ServerUnsuitableError, match=policy):
        check(own_server.url)


def test_a_server_that_drops_locks_when_full_is_warned_of_at_start_once(
    own_server: EmbeddedServer, pm, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis(port=own_server.port) as client:
        client.config_set("maxmemory-policy", "volatile-lru")
    plugin = attach(pm, own_server.url, "mail", LockOptions(stalled_interval=1_000))
    with caplog.at_level(logging.WARNING, "echomq_plugin"):
        plugin.start()
        plugin.start()
    plugin.stop(timeout_ms=0)
    warned = [record.getMessage() for record in caplog.records if record.echomq_event == "server unsafe"]
    assert len(warned) == 1
    assert "volatile-lru" in warned[0]
    assert "noeviction" in warned[0]
    of_options = [record.getMessage() for record in caplog.records if record.echomq_event == "options unsafe"]
    assert len(of_options) == 1
    assert "stalled_interval=1000 lets" in of_options[0]


def test_a_server_that_refuses_undeclared_keys_is_refused_with_the_flag_to_set(server: EmbeddedServer) -> None:
    with FaultProxy(server.port) as proxy:
        proxy.on(script("extendLocks-1"), reply(b"-ERR script tried accessing undeclared key\r\n"))
        with pytest.raises(ServerUnsuitableError, match="allow-undeclared-keys"):
            check(proxy.url)


def test_a_server_without_scripts_is_refused(server: EmbeddedServer) -> None:
    with FaultProxy(server.port) as proxy:
        proxy.on(named("EVALSHA", "EVAL"), reply(b"-ERR unknown command 'EVALSHA'\r\n"))
        with pytest.raises(ServerUnsuitableError, match="Lua"):
            check(proxy.url)


def test_a_replica_is_refused(own_server: EmbeddedServer) -> None:
    replica = EmbeddedServer(own_server.binary, ["--replicaof", "127.0.0.1", str(own_server.port)])
    with replica, pytest.raises(ServerUnsuitableError, match="replica"):
        check(replica.url)


def test_a_round_trip_that_takes_much_of_the_call_limit_is_warned_of(server: EmbeddedServer) -> None:
    with FaultProxy(server.port) as proxy:
        proxy.on(named("PTTL"), delay(before_ms=LIMIT_MS // 4))
        assert any("a round trip takes" in warning for warning in check(proxy.url).warnings)


def test_a_server_that_does_not_answer_is_no_unsuitable_server(server: EmbeddedServer) -> None:
    with FaultProxy(server.port) as proxy:
        proxy.on(every_command, reply(b"-LOADING Redis is loading the dataset in memory\r\n"))
        with pytest.raises(RedisCallError):
            check(proxy.url)
