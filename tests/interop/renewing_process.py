"""
A Python worker that keeps the locks of another runtime's jobs: a gevent app, told what to do by a test.

    python renewing_process.py <Redis URL> <queue> <prefix> <lock duration in ms>

One JSON line in: ``{"track": [id, token]}`` or ``{"untrack": id}`` for the protocol's own surface, ``{"start": [id,
token]}`` or ``{"finish": id}`` for the hook chain, ``{"take": token}`` or ``{"complete": [id, token]}`` for the bullmq
package, which is asyncio and so runs in a native thread. One JSON line out for each report.
"""

from gevent import monkey

monkey.patch_all()

import asyncio  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import pluggy  # noqa: E402

from echomq_plugin import Lock, LockManager, LockOptions, LostLock, attach, hookimpl_for  # noqa: E402

pm = pluggy.PluginManager("renewing")


def say(**report: object) -> None:
    """Write one line, whole."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


class Reporter:
    """Tells what the hooks are told."""

    @hookimpl_for(pm)
    def echomq_lock_lost(self, queue: str, lost: tuple[LostLock, ...]) -> None:
        say(lost=[[one.job_id, one.token, one.reason] for one in lost])

    @hookimpl_for(pm)
    def echomq_locks_renewed(self, queue: str, job_ids: tuple[str, ...]) -> None:
        say(renewed=job_ids)


async def with_bullmq(action: str, *arguments: str) -> Any:
    """Take a job, or complete one, as a worker of the bullmq package does; it renews nothing."""
    from bullmq import Job, Worker

    url, queue, prefix, lock_duration = sys.argv[1:]
    options = {"connection": url, "prefix": prefix, "lockDuration": int(lock_duration)}
    worker = Worker(queue, None, options)
    try:
        if action == "take":
            job = await worker.getNextJob(*arguments)
            return job and job.id
        job = await Job.fromId(worker, arguments[0])
        return await job.moveToCompleted("done", arguments[1])
    finally:
        await worker.close()


def in_thread(action: str, *arguments: str) -> Any:
    """Run asyncio beside the hub, which goes on."""
    return gevent.get_hub().threadpool.apply(lambda: asyncio.run(with_bullmq(action, *arguments)))


def main() -> None:
    """Renew until the input ends, or somebody kills us."""
    url, queue, prefix, lock_duration = sys.argv[1:]
    manager = LockManager(
        url,
        queue,
        prefix,
        lock_duration=int(lock_duration),
        on_lock_renewal_failed=lambda ids: say(lost=ids),
        on_locks_renewed=lambda ids: say(renewed=ids),
        on_renewal_error=lambda error: say(error=str(error)),
    )
    manager.start()
    pm.register(Reporter())
    # Passes as often as the test's own worker makes them: whoever wins one sets the time to the next.
    options = LockOptions(prefix=prefix, lock_duration=int(lock_duration), stalled_interval=800)
    attach(pm, url, queue, options)
    locks: dict[str, Lock] = {}
    for line in sys.stdin:
        match json.loads(line):
            case {"track": [job_id, token]}:
                manager.track_job(job_id, token)
                say(did=manager.get_tracked_job_ids())
            case {"untrack": job_id}:
                manager.untrack_job(job_id)
                say(did=manager.get_tracked_job_ids())
            case {"start": [job_id, token]}:
                locks[job_id] = pm.hook.echomq_job_start(
                    queue=queue, job_id=job_id, delivery=None, payload=None, token=token
                )
                say(did=job_id)
            case {"finish": job_id}:
                say(did=pm.hook.echomq_job_finish(lock=locks[job_id], outcome="completed").name)
            case {"take": token}:
                job_id = in_thread("take", token)
                manager.track_job(job_id, token)
                say(did=job_id)
            case {"complete": [job_id, token]}:
                manager.untrack_job(job_id)
                in_thread("complete", job_id, token)
                say(did=job_id)
            case order:
                raise ValueError(order)


if __name__ == "__main__":
    main()
