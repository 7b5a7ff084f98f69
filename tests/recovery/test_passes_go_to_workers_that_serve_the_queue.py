"""Who makes a pass of the sweep where several apps share a prefix."""

from __future__ import annotations

import pytest

from echomq_plugin.connections import Connections
from echomq_plugin.keys import QueueKeys
from echomq_plugin.sweep_scripts import SweepScripts

KEYS = QueueKeys("emq", "mail")
PAUSE_MS = 10_000


@pytest.fixture
def scripts(server, client):
    return SweepScripts(Connections(server.url, call_limit_ms=2_000))


def win(scripts, *, serves):
    return scripts.win_check(KEYS, "worker", PAUSE_MS, serves=serves)


def test_a_queue_that_nobody_has_swept_is_anybodys(scripts):
    """The first pass goes to whoever comes first."""
    assert win(scripts, serves=False) == 0


def test_a_due_pass_is_left_to_workers_that_serve_the_queue(scripts, client):
    """A stranger that won passes, and could put nothing back, would keep the jobs of dead workers waiting."""
    assert win(scripts, serves=True) == 0
    assert PAUSE_MS - 1_000 < win(scripts, serves=True) <= PAUSE_MS
    assert PAUSE_MS * 1.5 - 1_000 < win(scripts, serves=False) <= PAUSE_MS * 1.5
    client.pexpire(KEYS.held_check, PAUSE_MS // 2)
    assert win(scripts, serves=False) > 0
    assert win(scripts, serves=True) == 0


def test_a_stranger_sweeps_a_queue_whose_workers_are_all_gone(scripts, client):
    """When nobody who serves the queue has come for half a pause, the pass is anybody's."""
    assert win(scripts, serves=True) == 0
    client.pexpire(KEYS.held_check, 1)
    while client.exists(KEYS.held_check):
        pass
    assert win(scripts, serves=False) == 0
