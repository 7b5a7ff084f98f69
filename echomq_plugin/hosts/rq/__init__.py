"""
RQ: workers that lock every job.

``rq worker -w echomq_plugin.hosts.rq.LockedWorker`` (forking), ``LockedSpawnWorker`` (where RQ has a SpawnWorker),
``LockedSimpleWorker``, and ``GeventWorker``, which runs many jobs at once in one process. Options are read from
``ECHOMQ_*`` variables; third-party hooks from ``ECHOMQ_PLUGINS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echomq_plugin.hosts.rq.versions import check_version

check_version()

from echomq_plugin.hosts.rq.forking import ForkingLocks, LockedWorker  # noqa: E402  # RQ is there, and in range
from echomq_plugin.hosts.rq.locking import LockedJobs  # noqa: E402
from echomq_plugin.hosts.rq.simple import LockedSimpleWorker, SimpleLocks  # noqa: E402

if TYPE_CHECKING:
    from echomq_plugin.hosts.rq.gevent_worker import GeventWorker
    from echomq_plugin.hosts.rq.spawning import LockedSpawnWorker

__all__ = [
    "ForkingLocks",
    "GeventWorker",
    "LockedJobs",
    "LockedSimpleWorker",
    "LockedSpawnWorker",
    "LockedWorker",
    "SimpleLocks",
]


def __getattr__(name: str) -> object:
    if name == "LockedSpawnWorker":
        from echomq_plugin.hosts.rq import spawning

        return spawning.LockedSpawnWorker
    if name == "GeventWorker":
        # It monkey-patches, so it is imported only by those who want it.
        from echomq_plugin.hosts.rq import gevent_worker

        return gevent_worker.GeventWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
