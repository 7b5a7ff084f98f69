"""Huey has tox environments of its own, huey-oldest and huey-newest: elsewhere there is nothing here."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("huey") else ["test_*.py"]
