"""
The Python side: does the long part of BullMQ jobs, and keeps their locks while it does.

    python examples/bullmq_renewer/renewer.py [redis://localhost:6379] [lock duration in ms]

A Node worker (worker.mjs) takes the jobs and completes them; it hands over each job's id and token. However many jobs
run here, their locks are renewed by one greenlet and one call per tick. Should this process die, nobody renews them,
and Node's own stalled checker puts the jobs back. SIGTERM lets the running jobs end first.
"""

# ruff: noqa: E402  # monkey-patching comes before what it patches
from gevent import monkey

monkey.patch_all()

import json
import signal
import sys

import gevent
import pluggy
import redis
from gevent.event import Event
from gevent.pool import Pool

from echomq_plugin import LockLostError, LockOptions, attach, hookimpl_for

QUEUE = "videos"
JOBS = f"{QUEUE}-renewer:jobs"

pm = pluggy.PluginManager("bullmq-renewer")


class Reporter:
    """Tells what happens to the locks; every hook is optional."""

    @hookimpl_for(pm)
    def echomq_locks_renewed(self, job_ids):
        say(f"tick: {len(job_ids)} locks renewed in one call")

    @hookimpl_for(pm)
    def echomq_lock_lost(self, lost):
        for lock in lost:
            say(f"{lock.job_id}: lock lost ({lock.reason})")


def say(line):
    """Print one line at once, also into a pipe."""
    print(line, flush=True)


def transcode(data):
    """Take long."""
    gevent.sleep(data["seconds"])
    return {"frames": 25 * data["seconds"]}


def run(plugin, client, handed):
    """Work on one job, under the lock that Node took for it."""
    job_id = handed["id"]
    say(f"{job_id}: began")
    try:
        # The token is Node's: the lock is renewed here, and never taken or given back.
        with plugin.job(job_id, token=handed["token"]):
            result = transcode(handed["data"])
    except LockLostError as error:
        # Another run has the job, or will: what this one found out goes nowhere.
        say(f"{job_id}: stopped, {error}")
        return
    # Not renewed any more, with half of its life left: Node needs the lock once, to complete the job.
    client.rpush(handed["answers"], json.dumps(result))
    client.expire(handed["answers"], 3_600)
    say(f"{job_id}: done")


def main(url="redis://localhost:6379", lock_duration="30000"):
    """Work until SIGTERM."""
    pm.register(Reporter())
    options = LockOptions(prefix="bull", lock_duration=int(lock_duration))
    plugin = attach(pm, url, queue=QUEUE, options=options)
    plugin.start()
    client = redis.Redis.from_url(url)
    stopping = Event()
    gevent.signal_handler(signal.SIGTERM, stopping.set)
    jobs = Pool()
    while not stopping.is_set():
        item = client.blpop([JOBS], timeout=1)
        if item is not None:
            jobs.spawn(run, plugin, client, json.loads(item[1]))
    jobs.join()
    plugin.stop(timeout_ms=5_000)


if __name__ == "__main__":
    main(*sys.argv[1:])
