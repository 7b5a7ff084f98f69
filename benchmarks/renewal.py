"""
What renewing costs, beside the least that it could cost.

One pass of the package's own renewal over N held locks, on the wire to a real server, against a plain redis-py client
that sends the same EVALSHAs with arguments that were packed beforehand. Both take turns in one process, on one server;
every figure is the median over the turns, the ratio of the two halves of each turn.

    python -m benchmarks.renewal [--json]

The last line of ``--json`` is a list with an object for each number of locks:

    locks              locks held, all due in each pass
    calls_per_tick     EVALSHAs that the server counted in a pass
    client_us_per_lock CPU time of the client per renewed lock, in microseconds
    wall_ratio         wall time of a pass / wall time of the bare EVALSHAs
    longest_call_ms    the longest single call of a pass, in ms
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from operator import truediv
from typing import Any, TypeVar

import gevent
import msgpack
import redis

from echomq_plugin.connections import Client, Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.events import Report
from echomq_plugin.keys import QueueKeys
from echomq_plugin.lua_files import lua_script
from echomq_plugin.options import LockOptions
from echomq_plugin.renewal import Renewal
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable
from echomq_plugin.tracking import TrackedLocks

T = TypeVar("T")

TURNS = {1: 2_000, 100: 500, 1_000: 100, 10_000: 60}
WARM_UP_TURNS = 3
OPTIONS = LockOptions()
KEYS = QueueKeys(OPTIONS.prefix, "bench")


class TimedConnections(Connections):
    """Notes how long each call takes."""

    def __init__(self, url: str) -> None:
        super().__init__(url, call_limit_ms=OPTIONS.call_limit)
        self.call_times: list[float] = []

    def call(self, operation: str, work: Callable[[Client], T], *, limit_ms: int | None = None) -> T:
        begun = time.perf_counter()
        try:
            return super().call(operation, work, limit_ms=limit_ms)
        finally:
            self.call_times.append(time.perf_counter() - begun)


class Pass:
    """The package's renewal of N locks, with a clock that moves on by just what makes all of them due."""

    def __init__(self, url: str, jobs: list[tuple[str, str]]) -> None:
        self.now = 0
        self.renewed = 0
        self.connections = TimedConnections(url)
        tracked = TrackedLocks(lock_duration=OPTIONS.lock_duration, threshold=OPTIONS.interval)
        for job_id, token in jobs:
            tracked.track(KEYS.queue, job_id, token, now=0)
        self.renewal = Renewal(
            LockTable(tracked),
            Scripts(self.connections),
            prefix=OPTIONS.prefix,
            batch_size=OPTIONS.batch_size,
            now_ms=lambda: self.now,
            outbox=self.take,
        )

    def take(self, report: Report) -> None:
        self.renewed += len(report.job_ids)  # type: ignore[union-attr]  # nothing else is reported while all goes well

    def run(self) -> None:
        self.now += OPTIONS.interval + 1
        failures = self.renewal.run()
        if failures:
            raise failures[0].error


class BareCalls:
    """The same EVALSHAs on a plain client, their arguments packed beforehand."""

    def __init__(self, client: redis.Redis, jobs: list[tuple[str, str]]) -> None:
        self.client = client
        sha = lua_script("extendLocks-1").sha
        client.script_load(lua_script("extendLocks-1").body)
        self.commands: list[tuple[Any, ...]] = []
        for at in range(0, len(jobs), OPTIONS.batch_size):
            batch = jobs[at : at + OPTIONS.batch_size]
            ids, tokens = msgpack.packb([job for job, _ in batch]), msgpack.packb([token for _, token in batch])
            self.commands.append(("EVALSHA", sha, 1, KEYS.stalled, KEYS.base, tokens, ids, OPTIONS.lock_duration))

    def run(self) -> None:
        for command in self.commands:
            if self.client.execute_command(*command) != []:
                raise RuntimeError("a lock of the benchmark is lost")


def measure(server: EmbeddedServer, locks: int) -> dict[str, Any]:
    client = redis.Redis.from_url(server.url)
    client.flushall()
    jobs = [(f"job-{number}", f"0b8e2c1a-6f1d-4a52-9d0e-{number:012d}") for number in range(locks)]
    with client.pipeline(transaction=False) as pipeline:
        for job_id, token in jobs:
            pipeline.set(KEYS.lock(job_id), token, px=OPTIONS.lock_duration)
        pipeline.execute()
    ours, bare = Pass(server.url, jobs), BareCalls(client, jobs)
    for _ in range(WARM_UP_TURNS):
        ours.run()
        bare.run()
    ours.renewed = 0

    turns = TURNS[locks]
    calls_before = evalsha_calls(client)
    walls: list[float] = []
    bare_walls: list[float] = []
    cpus: list[float] = []
    longest: list[float] = []
    for turn in range(turns):
        for mine in (True, False) if turn % 2 else (False, True):
            cpu, wall = time.process_time(), time.perf_counter()
            (ours if mine else bare).run()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if mine:
                walls.append(wall)
                cpus.append(cpu)
                longest.append(max(ours.connections.call_times))
                ours.connections.call_times.clear()
            else:
                bare_walls.append(wall)
    calls = evalsha_calls(client) - calls_before - turns * len(bare.commands)
    if ours.renewed != turns * locks:
        raise RuntimeError(f"{ours.renewed} renewals, {turns * locks} were due")
    client.close()
    ours.connections.close_thread()
    return {
        "locks": locks,
        "calls_per_tick": round(calls / turns, 3),
        "client_us_per_lock": round(statistics.median(cpus) / locks * 1e6, 2),
        "wall_ratio": round(statistics.median(map(truediv, walls, bare_walls)), 3),
        "longest_call_ms": round(statistics.median(longest) * 1e3, 3),
    }


def evalsha_calls(client: redis.Redis) -> int:
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON list as the last line")
    arguments = parser.parse_args()
    gevent.get_hub()  # renewal runs on a hub, so its sockets wait through one here too
    with EmbeddedServer() as server:
        rows = [measure(server, locks) for locks in TURNS]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
