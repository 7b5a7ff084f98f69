"""
Huey: a lock for each task that runs. ``lock_tasks(huey)``, where the instance is made.

Huey forgets a task when a worker takes it: one that is killed in the middle of it loses it. Under a lock it comes back,
with the same id. ``ReliableRedisStorage`` also closes the gap between Huey's pop and the lock.
"""

from __future__ import annotations

from echomq_plugin.errors import MissingExtraError

try:
    import huey as _host  # noqa: F401
except ImportError as error:
    raise MissingExtraError("huey", "echomq_plugin.hosts.huey") from error

from echomq_plugin.hosts.huey.locking import lock_tasks
from echomq_plugin.hosts.huey.storage import ReliableRedisStorage

__all__ = ["ReliableRedisStorage", "lock_tasks"]
