"""ServerSettings: how to reach a server, read from whatever connection the host hands over. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import redis
from redis.cluster import RedisCluster
from redis.sentinel import SentinelConnectionPool

from echomq_plugin.errors import ConnectionKindError

_SETTINGS = frozenset(
    [
        "host",
        "port",
        "path",
        "db",
        "username",
        "password",
        "credential_provider",
        "protocol",
        "client_name",
        "socket_type",
        "redis_connect_func",
        "parser_class",
        "socket_read_size",
    ]
)

_DEFAULT_ADDRESS = {"host": "localhost", "port": 6379}

_MANNERS = frozenset(["protocol", "client_name", "parser_class", "socket_read_size"])
"""How one talks with a server; the rest says with which, and as whom."""


@dataclass(frozen=True)
class ServerSettings:
    """
    How to reach a server, as read from the host's client.

    Attributes:
        kind: ``node``, ``sentinel`` or ``cluster``.
        original_class: the connection class of the host's client.
        settings: what its connections are made with.
        nodes: (host, port) of the start-up nodes of a cluster.
        sentinels: connection ``class`` and ``settings`` of each sentinel.
        service: the name of the master that the sentinels watch.

    """

    kind: Literal["node", "sentinel", "cluster"]
    original_class: type[Any]
    settings: dict[str, Any]
    nodes: tuple[tuple[str, int], ...] = ()
    sentinels: tuple[dict[str, Any], ...] = ()
    service: str = ""

    def leads_where(self, other: ServerSettings) -> bool:
        """Tell whether both lead to the same server as the same user, however that was written."""
        return self._comparable() == other._comparable()

    def _comparable(self) -> ServerSettings:
        settings = {"db": 0} if "path" in self.settings else {**_DEFAULT_ADDRESS, "db": 0}
        settings |= {name: value for name, value in self.settings.items() if value is not None and name not in _MANNERS}
        return replace(self, settings=settings)


def read_settings(connection: object) -> ServerSettings:
    """
    Read the settings of a server. No I/O, but for what a callable does by itself.

    Args:
        connection: a ``redis.Redis``, a ``RedisCluster``, a URL, or a callable that returns one of them.

    Raises:
        ConnectionKindError: it is none of them.

    """
    if callable(connection) and not isinstance(connection, redis.Redis | RedisCluster):
        connection = connection()
    if isinstance(connection, str):
        try:
            connection = redis.Redis.from_url(connection)
        except ValueError as error:
            raise ConnectionKindError(connection, f"no Redis URL ({_why(error)}): write redis://host:port/db") from None
    if isinstance(connection, RedisCluster):
        return _cluster_settings(connection)
    if not isinstance(connection, redis.Redis):
        wanted = "pass a redis.Redis, a RedisCluster, a URL, or a callable that returns one"
        if type(connection).__module__.startswith("redis.asyncio"):
            wanted = "an asyncio client cannot be used: " + wanted
        raise ConnectionKindError(connection, wanted)
    pool = connection.connection_pool
    settings = _chosen(pool.connection_kwargs, pool.connection_class)
    if isinstance(pool, SentinelConnectionPool):
        settings.pop("host", None)
        settings.pop("port", None)
        pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
        sentinels = tuple(
            {
                "class": sentinel.connection_class,
                "settings": _chosen(sentinel.connection_kwargs, sentinel.connection_class),
            }
            for sentinel in pools
        )
        return ServerSettings(
            "sentinel", pool.connection_class, settings, sentinels=sentinels, service=pool.service_name
        )
    return ServerSettings("node", pool.connection_class, settings)


def _why(error: ValueError) -> str:
    """Say what is wrong with a URL. The driver's own words name no part of it; others quote what may be a password."""
    said = str(error)
    if said.startswith(("Redis URL", "Invalid value")):
        return said
    return "host, port or password cannot be told apart: write what is special in a password as %2F, %23, …"


def as_cluster(node: ServerSettings) -> ServerSettings:
    """
    Return the settings of the cluster that a node belongs to. No I/O.

    Raises:
        ConnectionKindError: it is not reached by host and port.

    """
    if node.kind != "node" or "path" in node.settings:
        raise ConnectionKindError(node, "a node of a cluster is reached by host and port")
    where = {**_DEFAULT_ADDRESS, **node.settings}
    settings = {name: value for name, value in node.settings.items() if name not in ("host", "port", "db")}
    return replace(node, kind="cluster", settings=settings, nodes=((where["host"], int(where["port"])),))


def _chosen(settings: dict[str, Any], original_class: type[Any]) -> dict[str, Any]:
    if not original_class.__module__.startswith("redis."):
        # A test double: only it knows what its settings mean.
        return {**settings, "decode_responses": False}
    return {name: value for name, value in settings.items() if name in _SETTINGS or name.startswith("ssl_")}


def _cluster_settings(cluster: RedisCluster) -> ServerSettings:
    manager: Any = cluster.nodes_manager
    settings = _chosen(manager.connection_kwargs, redis.Connection)
    # A cluster client puts its own first command there, bound to itself.
    settings.pop("redis_connect_func", None)
    settings.pop("host", None)
    settings.pop("port", None)
    original = manager.connection_kwargs.get("connection_class") or redis.Connection
    if manager.connection_kwargs.get("ssl"):
        original = redis.SSLConnection
    known = {**manager.startup_nodes, **manager.nodes_cache}
    nodes = tuple((node.host, int(node.port)) for node in known.values())
    return ServerSettings("cluster", original, settings, nodes=nodes)
