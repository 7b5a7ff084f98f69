"""Workers in processes of their own, each stopped by pid, and waits on conditions."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from echomq_plugin.embedded import EmbeddedServer

# RQ has tox environments of its own, rq-oldest and rq-newest: elsewhere there is nothing to collect.
collect_ignore_glob = [] if importlib.util.find_spec("rq") else ["test_*.py"]

HERE = Path(__file__).parent
LOCK_DURATION = 1_500
STALLED_INTERVAL = 1_000

FAST = {
    "ECHOMQ_LOCK_DURATION": str(LOCK_DURATION),
    "ECHOMQ_STALLED_INTERVAL": str(STALLED_INTERVAL),
    "ECHOMQ_CALL_LIMIT_MS": "200",
}


def until(condition: Callable[[], object], limit_s: float = 30.0) -> object:
    """Wait until a condition holds, and return what it returned."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{condition} did not come true within {limit_s} s")


class WorkerProcess:
    """One ``rq worker``."""

    def __init__(self, server: EmbeddedServer, arguments: list[str], log: Path, **environment: str) -> None:
        self.log_path = log
        path = os.pathsep.join([str(HERE.parents[2]), str(HERE), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*arguments],
                env={**os.environ, "PYTHONPATH": path, "TEST_REDIS_URL": server.url, **FAST, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, limit_s: float = 30.0) -> int:
        return self.process.wait(limit_s)

    def kill(self) -> None:
        """Kill the worker alone: what it has started is on its own."""
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(server: EmbeddedServer, client: redis.Redis, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts ``rq worker`` with one of our classes; whatever still runs at the end is killed by pid."""
    started: list[WorkerProcess] = []

    def start(
        *options: str, worker_class: str = "echomq_plugin.hosts.rq.LockedWorker", patched: bool = False, **env: str
    ) -> WorkerProcess:
        rq = str(Path(sys.executable).with_name("rq"))
        command = [sys.executable, *(["-m", "gevent.monkey"] if patched else []), rq]
        command += ["worker", "-w", worker_class, "--url", env.pop("url", server.url), *options]
        worker = WorkerProcess(server, command, tmp_path / f"worker-{len(started)}.log", **env)
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.close()
        print(f"--- {worker.log_path.name}\n{worker.log()[-4_000:]}")  # pytest shows it for a test that fails
    for pid in client.lrange("pids", 0, -1):
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass


def runs(client: redis.Redis, job_id: str) -> list[str]:
    """What the runs of a job have told: ``start`` and ``end``, in order."""
    return [event.decode() for event in client.lrange(f"events:{job_id}", 0, -1)]


def ended(client: redis.Redis, job_id: str) -> bool:
    return "end" in runs(client, job_id)


def overlapping(client: redis.Redis, job_id: str) -> bool:
    """Whether two runs of a job ran at once, as the job itself counted."""
    return bool(client.get(f"overlapped:{job_id}"))
