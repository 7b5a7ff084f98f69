"""
A gevent app without any queue library: five greenlets, five locks, one renewal call per tick.

    python examples/bare_gevent.py [redis://localhost:6379]

Without an argument, and without REDIS_URL in the environment, it starts a server of its own (the extra `embedded`).
It takes a few seconds: one line for each tick, a lock that is deleted by hand, and the job that lost it run again.
"""

# ruff: noqa: E402  # monkey-patching comes before what it patches
from gevent import monkey

monkey.patch_all()

import contextlib
import os
import sys

import gevent
import pluggy
import redis

from echomq_plugin import LockLostError, LockOptions, attach, hookimpl_for

pm = pluggy.PluginManager("my-app")
waiting = []


class Jobs:
    """What this app does with the library's events; every hook is optional."""

    @hookimpl_for(pm)
    def echomq_locks_renewed(self, job_ids):
        print(f"tick: {len(job_ids)} locks renewed in one call")

    @hookimpl_for(pm)
    def echomq_lock_lost(self, lost):
        for lock in lost:
            print(f"lost: {lock.job_id} ({lock.reason}), held for {lock.held_for_ms} ms")

    @hookimpl_for(pm)
    def echomq_job_stalled(self, job):
        # A queue would get the job back here; this app has only a list.
        waiting.append(job.job_id)
        return True


def run(plugin, job_id):
    """Do the work of one job, under its lock."""
    try:
        with plugin.job(job_id):
            gevent.sleep(3)
        print(f"done: {job_id}")
    except LockLostError as error:
        # Another worker may run this job now: what this run found out is not written anywhere.
        print(f"stopped: {error}")


def main(url):
    """Run five jobs for longer than a lock lives, and lose one lock."""
    pm.register(Jobs())
    # Short, so that there is something to see: the usual lock lives for 30 s.
    options = LockOptions(lock_duration=2_000, stalled_interval=3_000)
    plugin = attach(pm, url, queue="bare-example", options=options)
    plugin.start()
    jobs = [gevent.spawn(run, plugin, f"job-{number}") for number in range(5)]
    gevent.sleep(1)
    print("now the lock of job-3 is deleted by hand")
    with redis.Redis.from_url(url) as client:
        client.delete("emq:bare-example:job-3:lock")
    gevent.joinall(jobs, raise_error=True)
    # The sweep finds that job-3 has an entry and no lock, and has it put back.
    while not waiting:
        gevent.sleep(0.05)
    run(plugin, waiting.pop())
    plugin.stop(timeout_ms=5_000)


@contextlib.contextmanager
def some_server():
    """Yield the URL of a server: from the command line, from the environment, or of one that is started for this."""
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL")
    if url:
        yield url
    else:
        from echomq_plugin.embedded import EmbeddedServer

        with EmbeddedServer() as server:
            yield server.url


if __name__ == "__main__":
    with some_server() as some_url:
        main(some_url)
