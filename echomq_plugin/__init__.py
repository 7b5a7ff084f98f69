"""Keep every lock of a worker alive with one greenlet and one Redis call: a plugin for job queues."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("echomq_plugin runs on Linux and macOS: it needs fork, unix sockets and POSIX signals")

from echomq_plugin.attach import attach, hookimpl, hookimpl_for
from echomq_plugin.errors import (
    EchoMQError,
    LockHeldError,
    LockLostError,
    OwnershipUnknownError,
    RedisCallError,
    StartUndecidedError,
)
from echomq_plugin.events import FinishResult, LostLock, StalledJob
from echomq_plugin.interrupts import LockLostInterrupt
from echomq_plugin.lock_manager import LockManager
from echomq_plugin.locks import Lock
from echomq_plugin.options import LockOptions
from echomq_plugin.plugin import LockPlugin
from echomq_plugin.stalled import StalledChecker

__all__ = [
    "EchoMQError",
    "FinishResult",
    "Lock",
    "LockHeldError",
    "LockLostError",
    "LockLostInterrupt",
    "LockManager",
    "LockOptions",
    "LockPlugin",
    "LostLock",
    "OwnershipUnknownError",
    "RedisCallError",
    "StalledChecker",
    "StalledJob",
    "StartUndecidedError",
    "attach",
    "hookimpl",
    "hookimpl_for",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("echomq-plugin")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
