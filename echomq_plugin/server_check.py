"""What a server must be able to do; asked once, at start, so that no tick has to find out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from redis.exceptions import AskError, NoPermissionError, NoScriptError, ReadOnlyError, ResponseError

from echomq_plugin.cluster import ClusterClient
from echomq_plugin.connections import Client, Connections
from echomq_plugin.errors import RedisCallError, ServerUnsuitableError
from echomq_plugin.keys import QueueKeys, has_hash_tag, queues_key
from echomq_plugin.lua_files import lua_script

PERMISSIONS: Final = (
    "+evalsha +eval +script +get +set +del +exists +pttl +incr +hget +hset +hdel +hexists +hmget +hscan "
    "+srem +sadd +smembers +lrem +lpush +rpush +lpop +rpop +pexpire +time +info +cluster ~<prefix>:*"
)
"""What to grant an ACL user: ``ACL SETUSER name …``. Without ``+info`` the eviction policy cannot be checked."""

SLOW_SHARE: Final = 5
"""A round trip that takes more than this share of the call limit is warned of: one hiccup more, and calls fail."""

OLDEST: Final = (6, 2)
"""The oldest Redis that this package is tested on."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """
    What the check found.

    Attributes:
        kind: ``redis``, ``valkey`` or what the server calls itself; empty where it does not say.
        version: its version, likewise.
        round_trip_ms: the shortest of a few.
        warnings: what will do harm some day, with what to do instead.

    """

    kind: str
    version: str
    round_trip_ms: float
    warnings: tuple[str, ...]


def check_server(connections: Connections, queues: Sequence[QueueKeys]) -> ServerReport:
    """
    Check that the server can serve these queues. Switches greenlets.

    Raises:
        RedisCallError: the server does not answer.
        ServerUnsuitableError: it answers, but cannot do what the scripts need.

    """
    check_hash_tags(connections, queues)
    for keys in queues[:1]:
        _ask(connections, "check the permissions", lambda client, keys=keys: _try_commands(client, keys))
        _ask(connections, "check the frozen script", lambda client, keys=keys: _try_renewal(client, keys))
    round_trip_ms = _ask(connections, "measure a round trip", lambda client: _round_trip_ms(client, queues))
    info = _info(connections)
    warnings = [*_eviction(info), *_version(info), *_slowness(round_trip_ms, connections.call_limit_ms)]
    kind, version = _named(info[0]) if info else ("", "")
    return ServerReport(kind, version, round_trip_ms, tuple(dict.fromkeys(warnings)))


def check_hash_tags(connections: Connections, queues: Sequence[QueueKeys]) -> None:
    """
    Check that a cluster keeps each queue's keys together. No I/O.

    Raises:
        ServerUnsuitableError: it would not.

    """
    for keys in queues if connections.is_cluster else ():
        if not has_hash_tag(keys.base):
            raise ServerUnsuitableError(
                f"queue {keys.queue!r} has no hash tag, so a cluster would spread its keys over its nodes",
                f"write queue='{{{keys.queue}}}' or prefix='{{{keys.prefix}}}'",
            )


def _ask(connections: Connections, what: str, ask: Any) -> Any:
    try:
        return connections.call(what, ask)
    except RedisCallError as error:
        cause = error.__cause__
        if isinstance(cause, ServerUnsuitableError):
            raise cause from None
        said = str(cause).lower()
        if isinstance(cause, NoPermissionError):
            raise ServerUnsuitableError(f"this user may not do all it needs ({cause})", _grant()) from error
        if isinstance(cause, ReadOnlyError) or "-readonly" in said:
            raise ServerUnsuitableError(
                "the server is a replica", "connect to its master, or to the sentinels"
            ) from error
        if isinstance(cause, ResponseError) and "cmsgpack" in said:
            raise ServerUnsuitableError(
                "the server's Lua has no cmsgpack",
                "use Redis 6.2 or newer, or Valkey; for fakeredis pass lua_modules=echomq_plugin.testing.lua_modules()",
            ) from error
        if isinstance(cause, ResponseError) and "undeclared" in said:
            raise ServerUnsuitableError(
                "the server refuses scripts that touch keys they do not name; the frozen script does",
                "start it with --default_lua_flags=allow-undeclared-keys (Dragonfly)",
            ) from error
        if isinstance(cause, ResponseError) and "cluster support disabled" in said:
            raise ServerUnsuitableError("the server is no node of a cluster", "connect as to one server") from error
        if isinstance(cause, AskError) or said.startswith("moved "):  # an older driver's words
            raise ServerUnsuitableError(
                "the server is a node of a cluster", "connect with redis.RedisCluster (echomq-plugin check: --cluster)"
            ) from error
        if isinstance(cause, ResponseError) and "unknown command" in said:
            raise ServerUnsuitableError("the server cannot run Lua scripts", "use Redis or Valkey") from error
        raise


def _grant() -> str:
    return f"grant it {PERMISSIONS}"


def _try_commands(client: Client, keys: QueueKeys) -> None:
    try:
        client.execute_command("EVALSHA", "0" * 40, 1, keys.held)
    except NoScriptError:
        pass  # it may run scripts by their hash, and there is none of this one
    # A random name: no job of any runtime can be called so.
    refused = client.execute_command("EVAL", lua_script("probeServer-1").body, 1, f"{keys.base}{uuid.uuid4()}")
    if not isinstance(refused, list):
        raise ServerUnsuitableError(
            f"the server answered a script with {refused!r}", "use Redis 6.2 or newer, or Valkey"
        )
    if refused:
        names = " ".join(f"+{name.decode() if isinstance(name, bytes) else name}" for name in refused)
        raise ServerUnsuitableError(f"this user lacks {names}", _grant())
    client.execute_command("HMGET", keys.held, "none")
    client.execute_command("HSCAN", keys.held, 0, "COUNT", 1)
    client.execute_command("SMEMBERS", queues_key(keys.prefix))


def _try_renewal(client: Client, keys: QueueKeys) -> None:
    """Renew a lock that nobody has, by the script's text: it has to come back as not renewed."""
    nobody = str(uuid.uuid4())
    packed = msgpack.packb([nobody])
    body = lua_script("extendLocks-1").body
    reply = client.execute_command("EVAL", body, 1, keys.stalled, keys.base, packed, packed, 1_000)
    if reply not in ([nobody.encode()], [nobody]):
        raise ServerUnsuitableError(
            f"the server answered the frozen script with {reply!r}", "use Redis 6.2 or newer, or Valkey"
        )


def _round_trip_ms(client: Client, queues: Sequence[QueueKeys]) -> float:
    key = queues[0].held_check if queues else "nothing"
    fastest = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        client.execute_command("PTTL", key)
        fastest = min(fastest, (time.perf_counter() - began) * 1000)
    return fastest


def _info(connections: Connections) -> list[dict[str, Any]]:
    def ask(client: Client) -> list[dict[str, Any]]:
        nodes = client.masters() if isinstance(client, ClusterClient) else [client]
        return [node.info() for node in nodes]

    try:
        return connections.call("read INFO", ask)
    except RedisCallError:
        return []  # not allowed, or unknown to a look-alike: then nobody can tell


def _eviction(info: Sequence[dict[str, Any]]) -> list[str]:
    warnings = []
    for node in info:
        policy = str(node.get("maxmemory_policy", ""))
        limited = int(node.get("maxmemory", 0) or 0) > 0
        if policy.startswith("allkeys") and limited:
            raise ServerUnsuitableError(
                f"the server drops any key when it is full (maxmemory-policy {policy}), jobs' entries too",
                "set maxmemory-policy noeviction",
            )
        if policy.startswith(("volatile", "allkeys")):
            warnings.append(
                f"maxmemory-policy {policy} lets a full server drop live locks: set maxmemory-policy noeviction"
            )
    return warnings


def _named(node: dict[str, Any]) -> tuple[str, str]:
    for kind in ("valkey", "dragonfly", "keydb", "redis"):
        version = node.get(f"{kind}_version")
        if version:
            return kind, str(version)
    return str(node.get("server_name", "")), ""


def _version(info: Sequence[dict[str, Any]]) -> list[str]:
    warnings = []
    for node in info:
        kind, version = _named(node)
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if kind == "redis" and numbers and numbers < OLDEST:
            warnings.append(f"Redis {version} is older than what this package is tested on: use 6.2 or newer")
    return warnings


def _slowness(round_trip_ms: float, call_limit_ms: int) -> list[str]:
    if round_trip_ms * SLOW_SHARE <= call_limit_ms:
        return []
    return [
        f"a round trip takes {round_trip_ms:.0f} ms, and a call may take {call_limit_ms} ms: "
        "use a nearer server, or a longer lock_duration"
    ]
