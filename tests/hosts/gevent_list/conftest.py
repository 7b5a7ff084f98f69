"""Worker processes of the list tests, and what their runs wrote down."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from gevent import monkey

from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.native import pause

# They start processes of their own, patched and not, and a patched process starts the same.
collect_ignore = (
    ["test_gevent_consumer_workers.py", "test_gevent_page.py"] if monkey.is_module_patched("socket") else []
)

GENEROUS_S = 45.0
# Ticks that come often leave calls much of a lock's short life: the machine that runs this may be slow.
DURATIONS = {"lock_duration": 2_400, "lock_renew_time": 600, "call_limit_ms": 900}


def eventually(condition: Callable[[], object], what: str = "") -> Any:
    """Wait until a condition holds, and return what it returned; hubs turn meanwhile."""
    until = time.monotonic() + GENEROUS_S
    while not (found := condition()):
        assert time.monotonic() < until, f"never came true: {what or condition}"
        pause(0.02)
    return found


@dataclass
class Run:
    """One run of one job: by the server's clock in µs, ``ended_at`` None while it goes on."""

    job_id: str
    pid: int
    started_at: int
    ended_at: int | None = None
    end: str | None = None


@dataclass
class World:
    """A server, its workers, and the items and runs of the list ``mail``."""

    server: EmbeddedServer
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client: Any = redis.Redis.from_url(self.server.url, decode_responses=True)

    def push(self, job_id: str, *do: Any) -> None:
        """Enqueue a job."""
        self.client.lpush("mail", json.dumps({"id": job_id, "do": do}))

    def start_worker(
        self,
        *,
        concurrency: int = 20,
        shutdown_timeout_ms: int | None = None,
        patched: bool = True,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a worker process; it takes items once it is up."""
        settings = {
            "url": self.server.url,
            "concurrency": concurrency,
            "shutdown_timeout_ms": shutdown_timeout_ms,
            "patched": patched,
            "options": {
                **DURATIONS,
                "stalled_interval": 1_000,
                "denied_pause_ms": 100,
                **options,
            },
        }
        command = [sys.executable, str(Path(__file__).with_name("list_worker.py")), json.dumps(settings)]
        with (self.folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        self.workers.append(worker)
        return worker

    def log(self, worker: subprocess.Popen[bytes]) -> str:
        """Return what a worker has printed."""
        return (self.folder / f"worker-{self.workers.index(worker)}.log").read_text()

    def runs(self, job_id: str | None = None) -> list[Run]:
        """Return all runs of a job, or of all jobs."""
        by_token: dict[str, Run] = {}
        for line in self.client.lrange("runs", 0, -1):
            job, pid, token, event, at = json.loads(line)
            run = by_token.setdefault(token, Run(job, int(pid), int(at)))
            if event != "start" and run.end is None:
                run.ended_at, run.end = int(at), event
        runs = by_token.values()
        return [run for run in runs if job_id in (None, run.job_id)]

    def kill(self, worker: subprocess.Popen[bytes]) -> int:
        """SIGKILL a worker, and return when it was certainly dead, by the server's clock in µs."""
        worker.kill()
        worker.wait(GENEROUS_S)
        seconds, micros = self.client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def completed(self) -> set[str]:
        """Return the jobs of which a run has ended well."""
        return {run.job_id for run in self.runs() if run.end == "end"}

    def running(self) -> set[str]:
        """Return the jobs of which a run goes on, or was cut off."""
        return {run.job_id for run in self.runs() if run.end is None}

    def overlapping(self) -> list[tuple[Run, Run]]:
        """Return the pairs of runs of one job of which the second began before the first had ended."""
        pairs = []
        by_job: dict[str, list[Run]] = {}
        for run in sorted(self.runs(), key=lambda run: run.started_at):
            by_job.setdefault(run.job_id, []).append(run)
        for runs in by_job.values():
            pairs += [
                (one, other)
                for one, other in itertools.pairwise(runs)
                if one.ended_at is None or other.started_at < one.ended_at
            ]
        return pairs

    def traces(self) -> list[str]:
        """Return what is left of jobs in Redis: items that wait or are taken, locks, entries."""
        left = [key for key in self.client.scan_iter("*") if key in ("mail", "mail:processing", "emq:mail:held")]
        return left + list(self.client.scan_iter("emq:mail:*:lock"))


@pytest.fixture
def world(client: redis.Redis, server: EmbeddedServer, tmp_path: Path) -> Iterator[World]:
    """The shared server, emptied; workers are killed at the end."""
    yield from _world(server, tmp_path)


@pytest.fixture
def own_world(own_server: EmbeddedServer, tmp_path: Path) -> Iterator[World]:
    """A server of its own, to be stopped and started."""
    yield from _world(own_server, tmp_path)


def _world(server: EmbeddedServer, folder: Path) -> Iterator[World]:
    world = World(server, folder)
    try:
        yield world
    finally:
        for worker in world.workers:
            worker.kill()
            worker.wait(GENEROUS_S)
            print(f"--- worker {worker.pid}:\n{world.log(worker)[-3_000:]}")
        world.client.close()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object], str], Any]:
    """Waits for a condition with a generous limit."""
    return eventually
