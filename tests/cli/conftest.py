"""What the tests of the command line share."""

from __future__ import annotations

import pytest
import redis


@pytest.fixture
def decoded(server):
    """A client of the shared server that gives text."""
    with redis.Redis.from_url(server.url, decode_responses=True) as connection:
        yield connection
