"""What the tests of the command line share."""

from __future__ import annotations

import pytest
import redis
from gevent import monkey

# It starts processes of its own, and a patched process starts the same.
collect_ignore = ["test_demo.py"] if monkey.is_module_patched("socket") else []


@pytest.fixture
def decoded(server):
    """A client of the shared server that gives text."""
    with redis.Redis.from_url(server.url, decode_responses=True) as connection:
        yield connection
