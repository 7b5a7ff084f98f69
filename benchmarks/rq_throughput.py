"""
GeventWorker against RQ's SimpleWorker and Worker, in one run: jobs that wait, and jobs that do nothing.

``python -m benchmarks.rq_throughput --json``; the last line is one JSON object. ``--profile FILE`` writes what cProfile
saw of GeventWorker's no-op jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import redis
from rq import Queue

from echomq_plugin.embedded import EmbeddedServer

SLEEP_JOBS, SLOTS = 400, 200
IDEAL_S = SLEEP_JOBS / SLOTS
CLASSES = {
    "gevent": "echomq_plugin.hosts.rq.GeventWorker",
    "simple": "rq.worker.SimpleWorker",
    "worker": "rq.worker.Worker",
}


def nothing() -> None:
    """The no-op job."""


def sleep_a_second() -> None:
    """The job that waits."""
    time.sleep(1)


def first_and_last(client: redis.Redis) -> tuple[float, float]:
    """When the first job started and the last one ended, by RQ's own record."""
    started, ended = [], []
    for key in client.scan_iter("rq:job:*", count=1000):
        values = client.hmget(key, "started_at", "ended_at") if client.type(key) == b"hash" else [None, None]
        if None not in values:
            started.append(_seconds(values[0]))
            ended.append(_seconds(values[1]))
    return min(started), max(ended)


def _seconds(text: bytes) -> float:
    from rq.utils import utcparse

    return utcparse(text.decode()).timestamp()


def measure(kind: str, function: str, jobs: int, profile: str | None = None) -> float:
    """Run jobs through one burst worker; return the seconds from the first start to the last end."""
    with EmbeddedServer() as server, tempfile.TemporaryFile() as log:
        client = redis.Redis.from_url(server.url)
        queue = Queue("bench", connection=client)
        queue.enqueue_many(
            [Queue.prepare_data(f"benchmarks.rq_throughput.{function}", result_ttl=3600) for _ in range(jobs)]
        )
        rq = str(Path(sys.executable).with_name("rq"))
        command = [sys.executable]
        if kind == "gevent":
            command += ["-m", "gevent.monkey"]
            if profile:
                command += ["--module", "cProfile", "-o", profile]
        command += [rq, "worker", "-w", CLASSES[kind], "--url", server.url, "--burst", "--quiet", "bench"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
            "ECHOMQ_CONCURRENCY": str(SLOTS),
        }
        ended = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
        done = queue.finished_job_registry.count
        if ended.returncode != 0 or done != jobs:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-3000:])
            raise SystemExit(f"{kind}: {done} of {jobs} jobs finished, exit status {ended.returncode}")
        first, last = first_and_last(client)
        client.close()
        return last - first


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rq_throughput", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    parser.add_argument("--jobs", type=int, default=2_000, help="no-op jobs for each worker")
    parser.add_argument("--worker-jobs", type=int, default=None, help="as many for RQ's forking Worker alone")
    parser.add_argument("--profile", metavar="FILE")
    arguments = parser.parse_args(words)
    jobs = dict.fromkeys(CLASSES, arguments.jobs)
    if arguments.worker_jobs is not None:
        jobs["worker"] = arguments.worker_jobs
    if min(jobs.values()) < 1:
        parser.error("--jobs and --worker-jobs must be 1 or more")
    sleeps_s = measure("gevent", "sleep_a_second", SLEEP_JOBS)
    rates = {kind: round(jobs[kind] / measure(kind, "nothing", jobs[kind]), 1) for kind in CLASSES}
    if arguments.profile:
        measure("gevent", "nothing", arguments.jobs, arguments.profile)
    figures = {
        "sleep_jobs": SLEEP_JOBS,
        "slots": SLOTS,
        "sleep_s": round(sleeps_s, 2),
        "sleep_times_ideal": round(sleeps_s / IDEAL_S, 2),
        "noop_jobs": arguments.jobs,
        "noop_jobs_worker": jobs["worker"],
        **{f"noop_per_s_{kind}": rate for kind, rate in rates.items()},
        "noop_times_simple": round(rates["gevent"] / rates["simple"], 2),
        "noop_times_worker": round(rates["gevent"] / rates["worker"], 2),
    }
    if not arguments.json:
        for name, value in figures.items():
            print(f"{name:20} {value}")
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
