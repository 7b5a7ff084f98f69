"""Every test here starts a process of its own: a patched one starts the same, so they run once."""

from __future__ import annotations

from gevent import monkey

collect_ignore_glob = ["test_*.py"] if monkey.is_module_patched("socket") else []
