"""Groups of servers, started once for each file of tests that does them harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import binary_or_skip
from faults.conftest import pm, recorder

from chaos.servers import Cluster, SentinelGroup

__all__ = ["pm", "recorder"]


@pytest.fixture
def sentinels() -> Iterator[SentinelGroup]:
    with SentinelGroup(binary_or_skip(None)) as group:
        yield group


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """For tests that kill nobody."""
    with Cluster(binary_or_skip(None), replicas=False) as nodes:
        yield nodes


@pytest.fixture
def cluster_with_replicas() -> Iterator[Cluster]:
    with Cluster(binary_or_skip(None)) as nodes:
        yield nodes
