"""Every server that the wire is tested on, started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import QueueKeys
from echomq_plugin.testing import fake_redis
from wire.servers import KINDS, REAL_KINDS, Node


@pytest.fixture(scope="session")
def running(binary_for: Callable[[str], str]) -> Iterator[Callable[[str], EmbeddedServer]]:
    servers: dict[str, EmbeddedServer] = {}

    def started(kind: str) -> EmbeddedServer:
        if kind not in servers:
            servers[kind] = EmbeddedServer(binary_for(kind)).start()
        return servers[kind]

    yield started
    for server in servers.values():
        server.close()


def _node(kind: str, running: Callable[[str], EmbeddedServer]) -> Iterator[Node]:
    if kind == "fakeredis":
        import fakeredis

        server = fakeredis.FakeServer()
        client = fake_redis(server=server)
        node = Node(kind, fake_redis(server=server), client)
    else:
        embedded = running(kind)
        client = redis.Redis.from_url(embedded.url)
        client.flushall()
        client.config_resetstat()
        node = Node(kind, redis.Redis.from_url(embedded.url), client, embedded.unix_path, embedded.url)
    yield node
    node.close()
    client.close()


@pytest.fixture(params=KINDS)
def node(request: pytest.FixtureRequest, running: Callable[[str], EmbeddedServer]) -> Iterator[Node]:
    """Each kind of server in turn, empty."""
    yield from _node(request.param, running)


@pytest.fixture(params=REAL_KINDS)
def real_node(request: pytest.FixtureRequest, running: Callable[[str], EmbeddedServer]) -> Iterator[Node]:
    """Each kind of real server in turn, empty."""
    yield from _node(request.param, running)


@pytest.fixture
def keys() -> QueueKeys:
    return QueueKeys("emq", "mail")
