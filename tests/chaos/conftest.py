"""Groups of servers, started once for each file of tests that does them harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults.conftest import pm, recorder

from chaos.servers import Cluster, SentinelGroup
from echomq_plugin.embedded import EmbeddedServer

__all__ = ["pm", "recorder"]


@pytest.fixture
def sentinels(own_server: EmbeddedServer) -> Iterator[SentinelGroup]:
    with SentinelGroup(own_server.binary) as group:
        yield group


@pytest.fixture(scope="module")
def cluster(server: EmbeddedServer) -> Iterator[Cluster]:
    """For tests that kill nobody."""
    with Cluster(server.binary, replicas=False) as nodes:
        yield nodes


@pytest.fixture
def cluster_with_replicas(own_server: EmbeddedServer) -> Iterator[Cluster]:
    with Cluster(own_server.binary) as nodes:
        yield nodes
