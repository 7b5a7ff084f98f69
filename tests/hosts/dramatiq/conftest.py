"""Dramatiq has tox environments of its own, dramatiq-oldest and dramatiq-newest: elsewhere there is nothing here."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("dramatiq") else ["test_*.py"]


def pytest_configure(config):
    """Let old versions say at import which of their extras are missing."""
    config.addinivalue_line("filterwarnings", "ignore:.*not available.*:ImportWarning")
