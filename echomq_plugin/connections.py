"""
Connections: settings are read from whatever the host hands over, clients are our own.

One pool used from two hubs fails at once, so there is one client for each (process, native thread). It never retries by
itself, never caches and never reads from a replica: every answer is the master's, and every failure is seen.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import gevent
import redis
from gevent.hub import Hub
from gevent.lock import BoundedSemaphore
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from echomq_plugin.errors import ConnectionKindError, RedisCallError
from echomq_plugin.native import thread_id, uses_gevent
from echomq_plugin.sockets import Deadline, connection_class

_maintenance: Any
try:
    import redis.maint_notifications as _maintenance
except ImportError:  # an older driver; looked for here and not in the renewal thread
    _maintenance = None

Client = Any
"""A ``redis.Redis`` or a ``RedisCluster``: redis-py's own types do not say what a raw command returns."""

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 64
"""Calls of one native thread under way at once; more wait for their turn, within their limit."""

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


@dataclass(frozen=True)
class ServerSettings:
    """
    How to reach a server, as read from the host's client.

    Attributes:
        kind: ``node``, ``sentinel`` or ``cluster``.
        original_class: the connection class of the host's client.
        settings: what its connections are made with.
        nodes: (host, port) of the start-up nodes of a cluster.
        sentinels: the settings of each sentinel.
        service: the name of the master that the sentinels watch.

    """

    kind: Literal["node", "sentinel", "cluster"]
    original_class: type[Any]
    settings: dict[str, Any]
    nodes: tuple[tuple[str, int], ...] = ()
    sentinels: tuple[dict[str, Any], ...] = ()
    service: str = ""


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
            raise ConnectionKindError(connection, f"no Redis URL ({error}): write redis://host:port/db") from error
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
        sentinels = tuple(
            _chosen(sentinel.connection_pool.connection_kwargs, sentinel.connection_pool.connection_class)
            for sentinel in pool.sentinel_manager.sentinels
        )
        return ServerSettings(
            "sentinel", pool.connection_class, settings, sentinels=sentinels, service=pool.service_name
        )
    return ServerSettings("node", pool.connection_class, settings)


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
    original = redis.SSLConnection if manager.connection_kwargs.get("ssl") else redis.Connection
    known = {**manager.startup_nodes, **manager.nodes_cache}
    nodes = tuple((node.host, int(node.port)) for node in known.values())
    return ServerSettings("cluster", original, settings, nodes=nodes)


class _ThreadClient:
    """The client of one native thread. Its sockets and its ``slots`` belong to that thread's hub, if it has one."""

    def __init__(self, client: Client, deadline: Deadline, hub: Hub | None) -> None:
        self.client = client
        self.deadline = deadline
        self.hub = hub
        self.slots = BoundedSemaphore(MOST_CALLS_AT_ONCE, hub) if hub is not None else None

    def pools(self) -> list[Any]:
        """Return the pools of all its connections."""
        if isinstance(self.client, RedisCluster):
            nodes = [node.redis_connection for node in self.client.get_nodes()]
            return [client.connection_pool for client in nodes if client is not None]
        return [self.client.connection_pool]


class Connections:
    """
    Clients of our own for one server.

    Args:
        connection: see ``read_settings``.
        call_limit_ms: the limit of one whole call, in ms.

    Raises:
        ConnectionKindError: settings cannot be read from ``connection``.

    """

    def __init__(self, connection: object, *, call_limit_ms: int) -> None:
        self.source = connection
        self.call_limit_ms = call_limit_ms
        self.server = read_settings(connection)
        self._clients: dict[tuple[int, int, bool], _ThreadClient] = {}

    @property
    def is_cluster(self) -> bool:
        """Whether the server is a Redis Cluster."""
        return self.server.kind == "cluster"

    def call(self, operation: str, work: Callable[[Client], T], *, limit_ms: int | None = None) -> T:
        """
        Run ``work`` with this thread's client, under one limit for all it does. Switches greenlets.

        Args:
            operation: what is asked for, in words, for the error.
            work: gets the client; every exception it lets out becomes a RedisCallError.
            limit_ms: another limit than the usual one, in ms.

        Raises:
            RedisCallError: there was no usable answer. The connections that were used are closed.

        """
        limit_s = (limit_ms or self.call_limit_ms) / 1000
        on_hub = uses_gevent()
        timeout = gevent.Timeout(limit_s) if on_hub else None
        mine: _ThreadClient | None = None
        try:
            if timeout is not None:
                timeout.start()
            mine = self._client_of_this_thread(on_hub)
            if mine.slots is None:
                mine.deadline.begin(limit_s)
                return work(mine.client)
            with mine.slots:
                # TLS without patching waits natively even here, by the deadline.
                mine.deadline.begin(limit_s)
                return work(mine.client)
        except gevent.Timeout as expired:
            self._drop(mine)
            if expired is not timeout and not _has_no_owner(expired):
                raise
            reason = f"no answer within {round(limit_s * 1000)} ms"
            raise RedisCallError(operation, reason) from (None if expired is timeout else expired)
        except Exception as error:
            self._drop(mine)
            raise RedisCallError(operation, f"{type(error).__name__}: {error}") from error
        finally:
            if timeout is not None:
                timeout.close()
            if mine is not None:
                mine.deadline.end()

    def load(self) -> None:
        """
        Import, in the calling thread, all that making a connection imports. No I/O.

        redis-py imports a good deal when the first connection is made, and the renewal thread must import nothing.
        """
        # A cluster client would talk to its nodes; the connections that it makes are those of a single node.
        server = dataclasses.replace(self.server, kind="node") if self.is_cluster else self.server
        make_client(server, self.call_limit_ms / 1000, Deadline(), on_hub=True).connection_pool.make_connection()

    def drop_idle(self) -> None:
        """Close this thread's idle connections: the next call opens new ones, perhaps to another master."""
        self._drop(self._clients.get(self._key(uses_gevent())))

    def close_thread(self) -> None:
        """Close all that this native thread has opened; for a thread that ends."""
        for on_hub in (True, False):
            mine = self._clients.pop(self._key(on_hub), None)
            if mine is not None:
                for pool in mine.pools():
                    pool.disconnect()

    def _key(self, on_hub: bool) -> tuple[int, int, bool]:
        # The pid first: a child never uses, nor closes, what its parent opened.
        return os.getpid(), thread_id(), on_hub

    def _client_of_this_thread(self, on_hub: bool) -> _ThreadClient:
        key = self._key(on_hub)
        hub = gevent.get_hub() if on_hub else None
        mine = self._clients.get(key)
        # The system uses a dead thread's identity again; its sockets would wait on the dead thread's hub.
        if mine is None or mine.hub is not hub:
            deadline = Deadline()
            client = make_client(
                self.server, self.call_limit_ms / 1000, deadline, on_hub=on_hub
            )  # may switch greenlets
            made_meanwhile = self._clients.get(key)
            if made_meanwhile is not None and made_meanwhile.hub is hub:
                return made_meanwhile
            mine = self._clients[key] = _ThreadClient(client, deadline, hub)
        return mine

    def _drop(self, mine: _ThreadClient | None) -> None:
        for pool in mine.pools() if mine is not None else ():
            # Idle ones only: others are in the middle of the calls of other greenlets.
            pool.disconnect(inuse_connections=False)


def _has_no_owner(expired: gevent.Timeout) -> bool:
    """Tell a Timeout that was only raised from one that a caller further up started: that one must pass."""
    return expired.seconds is None and not expired.pending


def make_client(server: ServerSettings, limit_s: float, deadline: Deadline, *, on_hub: bool) -> Client:
    """Make a client of our own. Only a cluster client talks to the server for it."""
    ours = connection_class(server.original_class, on_hub=on_hub)
    settings: dict[str, Any] = {
        **server.settings,
        "socket_timeout": limit_s,
        "socket_connect_timeout": limit_s,
        "retry": Retry(NoBackoff(), 0),
        # Ids that other runtimes wrote may be any bytes: what `text` decoded must come out as it came in.
        "encoding_errors": "surrogateescape",
        "health_check_interval": 0,
    }
    if server.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in server.nodes]
        if issubclass(server.original_class, redis.SSLConnection):
            settings["ssl"] = True
        return RedisCluster(startup_nodes=nodes, **settings)
    settings.update(no_maintenance_notices())
    if ours is not None:
        settings["deadline"] = deadline
    chosen_class = ours or server.original_class
    if server.kind == "sentinel":
        # The sentinels' own connections are plain clients with limits of their own.
        manager = Sentinel([])
        manager.sentinels = [
            redis.Redis(**{**sentinel, "socket_timeout": limit_s, "socket_connect_timeout": limit_s})
            for sentinel in server.sentinels
        ]
        return manager.master_for(server.service, redis_class=redis.Redis, connection_class=chosen_class, **settings)
    return redis.Redis(connection_pool=ConnectionPool(connection_class=chosen_class, **settings))


def no_maintenance_notices() -> dict[str, Any]:
    """Return the setting that keeps newer drivers from moving connections by themselves; empty for older ones."""
    if _maintenance is None:
        return {}
    return {"maint_notifications_config": _maintenance.MaintNotificationsConfig(enabled=False)}
