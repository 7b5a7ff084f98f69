"""
Kill workers in the middle of their jobs, and see when the jobs run again.

``python -m benchmarks.recovery --host rq --json``: one worker and one queue for each kill, and rescuers that wait. The
last line is one JSON object. ``--stock`` runs the host's own workers through the same kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import redis

from benchmarks.recovery_hosts import HOSTS, Driver, driver_class
from benchmarks.recovery_hosts.job_body import is_alive
from echomq_plugin.embedded import EmbeddedServer

RESCUERS = 2
START_LIMIT_S = 180.0
MARGIN_S = 2.0
STOCK_CUT_OFF_S = 15 * 60.0


class Round:
    """All kills of one run of the benchmark, side by side."""

    def __init__(self, arguments: argparse.Namespace, server: EmbeddedServer, log: IO[bytes]) -> None:
        self.kills = arguments.kills
        self.stock = arguments.stock
        self.lock_duration = arguments.lock_duration
        self.stalled_interval = arguments.stalled_interval or arguments.lock_duration
        self.limit_s = (self.lock_duration + self.stalled_interval) / 1000 + MARGIN_S
        self.client = redis.Redis.from_url(server.url)
        self.driver: Driver = driver_class(arguments.host)(server.url, stock=arguments.stock)
        self.queues = [f"kill-{number}" for number in range(self.kills)]
        self.killed_at: dict[str, float] = {}
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
            "BENCH_REDIS_URL": server.url,
            "BENCH_STOCK": "1" if arguments.stock else "0",
            "ECHOMQ_LOCK_DURATION": str(self.lock_duration),
            "ECHOMQ_STALLED_INTERVAL": str(self.stalled_interval),
        }
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> dict[str, object]:
        """Kill, wait, and return the figures."""
        victims = {queue: self._start([queue]) for queue in self.queues}
        for queue in self.queues:
            self.driver.enqueue(queue, queue)
        wait_until(lambda: all(self.starts(queue) for queue in self.queues), START_LIMIT_S, "the first runs")
        shares = [self.queues] * RESCUERS if self.driver.rescuer_serves_all else [[queue] for queue in self.queues]
        for share in shares:
            self._start(share)
        # Their start is not what is measured; nothing tells for every host that a worker waits.
        time.sleep(5)
        self._kill(victims)
        cut_off_s = STOCK_CUT_OFF_S if self.stock else 3 * self.limit_s
        until = time.monotonic() + cut_off_s
        while time.monotonic() < until and not all(self.ended_again(queue) for queue in self.queues):
            time.sleep(0.1)
        return self.figures()

    def _kill(self, victims: dict[str, subprocess.Popen[bytes]]) -> None:
        # Spread over the time between two renewals, as real deaths are.
        pauses = sorted(random.uniform(0, self.lock_duration / 4000) for _ in victims)
        began = time.monotonic()
        for (queue, victim), pause in zip(victims.items(), pauses, strict=True):
            time.sleep(max(0.0, began + pause - time.monotonic()))
            self.killed_at[queue] = time.time()
            victim.kill()
            victim.wait()

    def starts(self, queue: str) -> list[dict[str, object]]:
        """The starts of a queue's one job, in order."""
        return [event for event in self._events(queue) if event["event"] == "start"]

    def ended_again(self, queue: str) -> bool:
        """Whether the job has run to its end on another worker."""
        return any(event["event"] == "end" and event["at"] > self.killed_at[queue] for event in self._events(queue))

    def _events(self, queue: str) -> list[dict[str, object]]:
        return [json.loads(event) for event in self.client.lrange(f"bench:{queue}", 0, -1)]

    def figures(self) -> dict[str, object]:
        """What is printed."""
        waits: list[float] = []
        overlapping = 0
        for queue in self.queues:
            again = self.starts(queue)[1:]
            overlapping += any(event["overlaps"] for event in again)
            if again:
                waits.append(float(str(again[0]["at"])) - self.killed_at[queue])
        return {
            "lock_duration_ms": self.lock_duration,
            "stalled_interval_ms": self.stalled_interval,
            "kills": self.kills,
            "lost": self.kills - len(waits),
            "overlapping": overlapping,
            "max_rerun_s": round(max(waits), 2) if waits else None,
            "median_rerun_s": round(sorted(waits)[len(waits) // 2], 2) if waits else None,
            "limit_s": self.limit_s,
            "stock": self.stock,
        }

    def _start(self, queues: Sequence[str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.driver.command(queues),
            env=self._environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End everything that was started, by pid."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for queue in self.queues:
            for event in self.starts(queue):
                pid = int(str(event["pid"]))
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
        self.client.close()


def wait_until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Wait for a condition, or end the benchmark."""
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come within {limit_s} s")
        time.sleep(0.1)


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 when nothing was lost, no runs overlapped, and every job ran again within the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--host", required=True, choices=HOSTS)
    parser.add_argument("--json", action="store_true", help="print nothing but one JSON object")
    parser.add_argument("--lock-duration", type=int, default=30_000, metavar="MS")
    parser.add_argument("--stalled-interval", type=int, default=None, metavar="MS", help="default: the lock duration")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stock", action="store_true", help="the host's own workers, cut off after 15 minutes")
    arguments = parser.parse_args(words)
    if arguments.kills < 1 or arguments.lock_duration < 1:
        parser.error("--kills and --lock-duration must be 1 or more")
    log_path = Path(tempfile.gettempdir()) / f"recovery-{arguments.host}-{os.getpid()}.log"
    with EmbeddedServer() as server, log_path.open("wb") as log:
        one_round = Round(arguments, server, log)
        try:
            figures = {"host": arguments.host, **one_round.run()}
        except SystemExit:
            print(log_path.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
        finally:
            one_round.close()
    log_path.unlink()
    if not arguments.json:
        for name, value in figures.items():
            print(f"{name:20} {value}")
    print(json.dumps(figures))
    rerun = figures["max_rerun_s"]
    within = isinstance(rerun, float) and rerun <= one_round.limit_s
    return 0 if arguments.stock or (not figures["lost"] and not figures["overlapping"] and within) else 1


if __name__ == "__main__":
    raise SystemExit(main())
