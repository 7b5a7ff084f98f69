"""Processes of other runtimes, told what to do by the tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GENEROUS_S = 60.0


def wait_until(condition: Callable[[], object], what: str, limit_s: float = GENEROUS_S) -> Any:
    """Wait for a condition, and return what it gave; the limit is there for hung tests, not for slow machines."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {limit_s:.0f} s in vain until {what}")


class NodePeer:
    """A Node process that does with BullMQ what it is told, one JSON line each way; see ``peer.mjs``."""

    def __init__(self, node_modules: Path, url: str) -> None:
        self.process = subprocess.Popen(
            ["node", str(HERE / "peer.mjs"), str(node_modules), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, action: str, **arguments: object) -> Any:
        """Have one thing done, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"action": action, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the Node process ended while it was to {action}"
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{action}: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class RenewingProcess:
    """A Python process that renews what it is told to, and whose reports are read; see ``renewing_process.py``."""

    def __init__(self, url: str, queue: str, prefix: str, lock_duration: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "renewing_process.py"), url, queue, prefix, str(lock_duration)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._unread = b""
        self._reports: list[dict[str, Any]] = []

    def tell(self, **order: object) -> Any:
        """Give one order, wait until it is carried out, and return what came of it."""
        assert self.process.stdin is not None
        known = len(self.reports("did"))
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        wait_until(lambda: len(self.reports("did")) > known, f"the renewing process did {order}")
        return self.reports("did")[-1]

    def reports(self, kind: str) -> list[Any]:
        """Return all reports of one kind until now: ``renewed``, ``lost``, ``error`` or ``did``."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            self._unread += os.read(self.process.stdout.fileno(), 1 << 20)
        *lines, self._unread = self._unread.split(b"\n")
        self._reports += [json.loads(line) for line in lines]
        return [report[kind] for report in self._reports if kind in report]

    def close(self) -> None:
        """Kill the process, by pid, as a machine does that runs out of memory."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
