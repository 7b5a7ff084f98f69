"""
Connections: settings are read from whatever the host hands over, clients are our own.

One pool used from two hubs fails at once, so there is one client for each (process, native thread). It never retries by
itself, never caches and never reads from a replica: every answer is the master's, and every failure is seen.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any, TypeVar

import gevent
from gevent.hub import Hub
from gevent.lock import BoundedSemaphore

from echomq_plugin.clients import Client, make_client
from echomq_plugin.cluster import ClusterClient
from echomq_plugin.errors import RedisCallError
from echomq_plugin.native import thread_id, uses_gevent
from echomq_plugin.server_settings import read_settings
from echomq_plugin.sockets import Deadline

__all__ = ["Client", "Connections"]

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 64
"""Calls of one native thread under way at once; more wait for their turn, within their limit."""


class _ThreadClient:
    """The client of one native thread. Its sockets and its ``slots`` belong to that thread's hub, if it has one."""

    def __init__(self, client: Client, deadline: Deadline, hub: Hub | None) -> None:
        self.client = client
        self.deadline = deadline
        self.hub = hub
        self.slots = BoundedSemaphore(MOST_CALLS_AT_ONCE, hub) if hub is not None else None

    def pools(self) -> list[Any]:
        """Return the pools of all its connections."""
        if isinstance(self.client, ClusterClient):
            return self.client.pools()
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
        # A cluster client makes its connections node by node, and they are those of a single server.
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
        if mine is not None and isinstance(mine.client, ClusterClient):
            mine.client.forget()
        for pool in mine.pools() if mine is not None else ():
            # Idle ones only: others are in the middle of the calls of other greenlets.
            pool.disconnect(inuse_connections=False)


def _has_no_owner(expired: gevent.Timeout) -> bool:
    """Tell a Timeout that was only raised from one that a caller further up started: that one must pass."""
    return expired.seconds is None and not expired.pending
