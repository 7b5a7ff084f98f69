"""
Locks under trouble for minutes: workers killed and stopped, Redis stopped, restarted, emptied, refusing and garbled.

``python -m benchmarks.soak --minutes 5 --json``: 4 worker processes and 2 000 live jobs, and a fault every few seconds.
The last line is one JSON object: jobs that were lost, beliefs that overlapped while the server forgot nothing, losses
that were invented, reported twice or not at all, and a count of each fault that was survived.
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
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import redis

from benchmarks.soak_log import Forgotten, excused, read_logs, unreported
from benchmarks.soak_worker import DONE, KEYS, OPTIONS, TODO, taken_list
from echomq_plugin.clocks import SystemClock
from echomq_plugin.embedded import EmbeddedServer
from tests.faults.proxy import (
    BUSY,
    LOADING,
    NOPERM,
    NOT_A_LIST,
    OOM,
    READONLY,
    Fault,
    FaultProxy,
    Matches,
    cut_after,
    cut_in_the_middle,
    delay,
    every_command,
    reply,
    script,
    swallow,
)

WORKERS = 4
LIVE_JOBS = 2_000
PAUSES_S = (2.0, 6.0)
SETTLE_S = 240.0
SWEPT_S = 45.0
"""By then a dead worker's jobs are back in their queue: until then only their entries know of them."""
KNOWN_AGAIN_S = 8.0
"""By then the live workers have told a server that forgot; before, what a worker takes with it is known to nobody."""
BELIEF_MS = OPTIONS.renew_time + OPTIONS.call_limit
"""How long a double belief may last once the server forgot and can be reached."""
MUST_BE_ZERO = ("jobs_lost", "overlapping", "invented_losses", "repeated_losses", "unreported_losses")


class Soak:
    def __init__(self, minutes: float, seed: int, folder: Path) -> None:
        self.minutes = minutes
        self.dice = random.Random(seed)
        self.folder = folder
        self.clock = SystemClock()
        self.server = EmbeddedServer(arguments=["--save", ""], keep_data=True)
        self.host = EmbeddedServer()
        self.proxy = FaultProxy(self.server.port)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.logs: list[Path] = []
        self.died: dict[Path, int] = {}
        self.forgot: list[Forgotten] = []
        self.troubles: list[tuple[int, int]] = []
        self.faults: Counter[str] = Counter()
        self.pushed = 0

    def run(self) -> dict[str, object]:
        with self.server, self.host, self.proxy:
            self.queue = redis.Redis(port=self.host.port, decode_responses=True)
            try:
                self._spawn(WORKERS)
                self._trouble()
                self._settle()
            finally:
                for worker in self.workers:
                    worker.kill()
                    worker.wait()
            return self._result()

    def _spawn(self, how_many: int) -> None:
        for _ in range(how_many):
            log = self.folder / f"worker-{len(self.logs)}"
            self.logs.append(log)
            arguments = [self.proxy.url, self.server.url, self.host.url, str(log), str(LIVE_JOBS // WORKERS)]
            command = [sys.executable, "-m", "benchmarks.soak_worker", *arguments]
            self.workers.append(subprocess.Popen(command))

    def _feed(self) -> None:
        wanted = LIVE_JOBS // 4
        while self.queue.llen(TODO) < wanted or self.pushed < LIVE_JOBS:
            self.queue.rpush(TODO, *range(self.pushed, self.pushed + 100))
            self.pushed += 100

    def _trouble(self) -> None:
        faults = [
            self.worker_killed, self.worker_killed, self.worker_stopped, self.server_stopped, self.server_restarted,
            self.server_emptied, self.scripts_flushed, self.connections_cut, self.replies_lost, self.slow_network,
            self.black_hole, self.read_only, self.loading, self.out_of_memory, self.no_permission, self.busy,
            self.reply_not_a_list, self.replies_cut_off, self.lock_deleted, self.lock_deleted,
        ]  # fmt: skip
        until = time.monotonic() + self.minutes * 60
        waiting = list(faults)
        self.dice.shuffle(waiting)
        while time.monotonic() < until:
            self._feed()
            self._wait(self.dice.uniform(*PAUSES_S))
            fault: Callable[[], None] = waiting.pop() if waiting else self.dice.choice(faults)
            if fault == self.worker_killed:
                self._keep_apart((lost.at for lost in self.forgot if lost.token is None), KNOWN_AGAIN_S)
            elif fault == self.server_emptied:
                self._keep_apart(self.died.values(), SWEPT_S)
            self.faults[fault.__name__] += 1
            began = self.clock.now_ms()
            fault()
            if fault != self.slow_network:  # slow, but reached
                self.troubles.append((began, self.clock.now_ms()))
        self.proxy.clear()

    def _wait(self, seconds: float) -> None:
        """Let time pass; nobody who runs may have ended by itself."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for worker in self.workers:
                assert worker.poll() is None, f"a worker ended by itself: {worker.returncode}"
            time.sleep(0.1)

    def _settle(self) -> None:
        until = time.monotonic() + SETTLE_S
        while self.queue.scard(DONE) < self.pushed and time.monotonic() < until:
            self._wait(0.5)

    def _result(self) -> dict[str, object]:
        seen = read_logs(self.logs, self.died, OPTIONS.lock_duration)
        fine = [overlap for overlap in seen.overlaps if excused(overlap, self.forgot, self.troubles, BELIEF_MS)]
        return {
            "jobs_completed": self.completed(),
            "jobs_lost": self.pushed - self.completed(),
            "overlapping": len(seen.overlaps) - len(fine),
            "overlapping_after_forgetting": len(fine),
            "invented_losses": seen.invented,
            "repeated_losses": seen.repeated,
            "unreported_losses": len(unreported(seen, self.forgot, self.troubles, BELIEF_MS)),
            "unchecked_losses": seen.unchecked,
            "reported_losses": dict(seen.losses),
            "put_back": seen.put_back,
            "runs": seen.runs,
            "faults": dict(self.faults),
        }

    def completed(self) -> int:
        return int(self.queue.scard(DONE))

    # -- faults ------------------------------------------------------------------------------------------------------

    def worker_killed(self) -> None:
        number = self.dice.randrange(len(self.workers))
        worker = self.workers.pop(number)
        worker.kill()
        worker.wait()
        self.died[self._log_of(worker)] = self.clock.now_ms()
        while self.queue.lmove(taken_list(worker.pid), TODO, "LEFT", "RIGHT") is not None:
            pass
        self._spawn(1)

    def _log_of(self, worker: subprocess.Popen[bytes]) -> Path:
        assert isinstance(worker.args, list)
        return Path(worker.args[-2])

    def worker_stopped(self) -> None:
        worker = self.dice.choice(self.workers)
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(self.dice.choice((1.0, 4.0, 14.0)))
        os.kill(worker.pid, signal.SIGCONT)

    def server_stopped(self) -> None:
        self.server.signal(signal.SIGSTOP)
        time.sleep(self.dice.choice((0.5, 2.0, 4.0, 14.0)))
        self.server.signal(signal.SIGCONT)

    def server_restarted(self) -> None:
        self.server.stop()
        time.sleep(self.dice.choice((0.1, 2.0)))
        self.server.start()

    def _keep_apart(self, moments: Iterable[int], seconds: float) -> None:
        """A job that the server forgets and whose worker dies is gone (docs/guarantees.md): not asked for here."""
        left = max(moments, default=-(10**9)) / 1000 + seconds - self.clock.now_ms() / 1000
        if left > 0:
            self._wait(left)

    def server_emptied(self) -> None:
        self.forgot.append(Forgotten(self.clock.now_ms()))
        with redis.Redis(port=self.server.port) as admin:
            admin.flushall()

    def lock_deleted(self) -> None:
        with redis.Redis(port=self.server.port, decode_responses=True) as admin:
            held = admin.hkeys(KEYS.held)
            self.dice.shuffle(held)
            for job_id in held:
                at = self.clock.now_ms()
                token = admin.getdel(KEYS.lock(job_id))
                if token is not None:
                    self.forgot.append(Forgotten(at, job_id, token))
                    return

    def scripts_flushed(self) -> None:
        with redis.Redis(port=self.server.port) as admin:
            admin.script_flush()

    def connections_cut(self) -> None:
        self.proxy.cut_all()

    def _for_a_while(self, fault: Fault, matches: Matches = every_command) -> None:
        self.proxy.on(matches, fault)
        time.sleep(self.dice.choice((0.3, 1.5, 3.0)))
        self.proxy.clear()

    def _some(self, fault: Fault) -> None:
        self.proxy.on(every_command, fault, times=self.dice.randint(20, 200))
        time.sleep(1)
        self.proxy.clear()

    def replies_lost(self) -> None:
        self._some(cut_after)

    def replies_cut_off(self) -> None:
        self._some(cut_in_the_middle)

    def reply_not_a_list(self) -> None:
        self._for_a_while(reply(NOT_A_LIST), script("extendLocks-1"))

    def slow_network(self) -> None:
        self._for_a_while(delay(50, 150))

    def black_hole(self) -> None:
        self._for_a_while(swallow)
        self.proxy.cut_all()

    def read_only(self) -> None:
        self._for_a_while(reply(READONLY))

    def loading(self) -> None:
        self._for_a_while(reply(LOADING))

    def out_of_memory(self) -> None:
        self._for_a_while(reply(OOM))

    def no_permission(self) -> None:
        self._for_a_while(reply(NOPERM))

    def busy(self) -> None:
        self._for_a_while(reply(BUSY))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echomq-soak-") as folder:
        result = Soak(arguments.minutes, arguments.seed, Path(folder)).run()
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name}: {value}")
    return 1 if any(result[name] for name in MUST_BE_ZERO) else 0


if __name__ == "__main__":
    sys.exit(main())
