"""Clients of our own: for one server, for the master that sentinels watch, or for a cluster."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry
from redis.sentinel import Sentinel

from echomq_plugin.cluster import ClusterClient
from echomq_plugin.server_settings import ServerSettings
from echomq_plugin.sockets import Deadline, connection_class

_maintenance: Any
try:
    import redis.maint_notifications as _maintenance
except ImportError:  # an older driver; looked for here and not in the renewal thread
    _maintenance = None

Client = Any
"""A ``redis.Redis`` or a ``ClusterClient``: redis-py's own types do not say what a raw command returns."""


def make_client(server: ServerSettings, limit_s: float, deadline: Deadline, *, on_hub: bool) -> Client:
    """Make a client of our own. No I/O."""

    def own_class(original: type[Any]) -> tuple[type[Any], dict[str, Any]]:
        ours = connection_class(original, on_hub=on_hub)
        return (original, {}) if ours is None else (ours, {"deadline": deadline})

    def one_server(original: type[Any], settings: dict[str, Any]) -> redis.Redis:
        kind, more = own_class(original)
        return redis.Redis(connection_pool=ConnectionPool(connection_class=kind, **{**settings, **limits, **more}))

    limits: dict[str, Any] = {
        "socket_timeout": limit_s,
        "socket_connect_timeout": limit_s,
        "retry": Retry(NoBackoff(), 0),
        # Ids that other runtimes wrote may be any bytes: what `text` decoded must come out as it came in.
        "encoding_errors": "surrogateescape",
        "health_check_interval": 0,
        **no_maintenance_notices(),
    }
    if server.kind == "cluster":
        return ClusterClient(
            server.nodes,
            lambda host, port: one_server(server.original_class, {**server.settings, "host": host, "port": port}),
        )
    if server.kind == "node":
        return one_server(server.original_class, server.settings)
    sentinels = _Sentinels([])
    sentinels.sentinels = [one_server(sentinel["class"], sentinel["settings"]) for sentinel in server.sentinels]
    kind, more = own_class(server.original_class)
    settings = {**server.settings, **limits, **more}
    return sentinels.master_for(server.service, redis_class=redis.Redis, connection_class=kind, **settings)


class _Sentinels(Sentinel):
    """Asks another sentinel first each time: one that never answers takes the whole limit of the call that asks it."""

    def discover_master(self, service_name: str) -> Any:
        self.sentinels.append(self.sentinels.pop(0))
        return super().discover_master(service_name)


def no_maintenance_notices() -> dict[str, Any]:
    """Return the setting that keeps newer drivers from moving connections by themselves; empty for older ones."""
    if _maintenance is None:
        return {}
    return {"maint_notifications_config": _maintenance.MaintNotificationsConfig(enabled=False)}
