"""The hooks of a list consumer: how the jobs of dead workers come back into a reliable list."""

from __future__ import annotations

import pluggy

from echomq_plugin.attach import hookimpl_for
from echomq_plugin.events import StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.hosts.reliable_list import ReliableList


def list_hooks(pm: pluggy.PluginManager, items: ReliableList, queue: str) -> HookNamespace:
    """
    Return a plugin that puts stalled jobs of a queue back into a list, and abandoned ones among its failed items.

    Args:
        pm: the plugin manager that it is for.
        items: the list.
        queue: the queue of its jobs; other queues' jobs are left to other plugins.

    """

    def echomq_job_stalled(job: StalledJob) -> bool | None:
        item = _item_of(job, queue)
        if item is None:
            return None
        # No longer taken: its result was written, or it was put back before. Either way there is nothing left to do.
        items.put_back(item, run_next=True)
        return True

    def echomq_job_abandoned(job: StalledJob) -> None:
        item = _item_of(job, queue)
        if item is not None:
            items.fail(item)

    marker = hookimpl_for(pm)
    return HookNamespace(
        echomq_job_stalled=marker(echomq_job_stalled), echomq_job_abandoned=marker(echomq_job_abandoned)
    )


def _item_of(job: StalledJob, queue: str) -> bytes | None:
    if job.queue != queue or job.payload is None:
        return None
    return job.payload if isinstance(job.payload, bytes) else job.payload.encode()
