"""Waiting in tests: for a condition, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable

from echomq_plugin.native import pause

GENEROUS_S = 30.0
"""Long enough for a machine that is busy with other things; a test that works never waits for it."""


def eventually(condition: Callable[[], object], what: str = "", limit_s: float = GENEROUS_S) -> None:
    """Wait until ``condition`` is true; hubs turn meanwhile."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"never came true: {what or condition}"
        pause(0.01)


def let_pass(ms: int) -> None:
    """Let real time pass in which something must *not* happen; hubs turn meanwhile."""
    until = time.monotonic() + ms / 1000
    while time.monotonic() < until:
        pause(0.01)
