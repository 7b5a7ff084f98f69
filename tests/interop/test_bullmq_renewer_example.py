"""The example pair runs as its page says: Node takes and completes, Python works and renews."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from echomq_plugin.embedded import EmbeddedServer
from interop.peers import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "bullmq_renewer"
LOCK_DURATION = "2000"
STALLED_INTERVAL = "400"


class Spoken:
    """A process of the example, and the lines it has printed."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.process.stdout is not None
        self._pipe = self.process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._text = b""

    def lines(self) -> list[str]:
        try:
            self._text += os.read(self._pipe.fileno(), 1 << 20)
        except BlockingIOError:
            pass
        return self._text.decode().splitlines()

    def says(self, beginning: str) -> str:
        """Wait for a line that begins so, and return it."""

        def line() -> str | None:
            return next((line for line in self.lines() if line.startswith(beginning)), None)

        return str(wait_until(line, f"{self.process.args!r} said {beginning!r}; it said {self._text.decode()!r}"))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._pipe.close()


@pytest.fixture
def start(node_modules: Path, tmp_path: Path, server: EmbeddedServer, client: object) -> Iterator[object]:
    """Start the example's programs: ``start("worker.mjs", …)``, in a folder with the packages that they ask for."""
    folder = tmp_path / "bullmq_renewer"
    shutil.copytree(EXAMPLE, folder)
    (folder / "node_modules").symlink_to(node_modules, target_is_directory=True)
    started: list[Spoken] = []

    def start(name: str, *arguments: str) -> Spoken:
        program = ["node"] if name.endswith(".mjs") else [sys.executable, "-W", "error"]
        started.append(Spoken(*program, str(folder / name), server.url, *arguments))
        return started[-1]

    yield start
    for spoken in started:
        spoken.close()


def test_a_python_service_keeps_nodes_jobs_while_it_works_and_node_takes_them_back_when_it_dies(start) -> None:  # type: ignore[no-untyped-def]
    node = start("worker.mjs", LOCK_DURATION, STALLED_INTERVAL)
    python = start("renewer.py", LOCK_DURATION)

    start("add.mjs", "3", "5").says("3: added")
    for job_id in "123":
        assert node.says(f"{job_id}: completed") == f'{job_id}: completed, {{"frames":125}}'
    assert "tick: 3 locks renewed in one call" in python.lines()
    assert not [line for line in node.lines() if "stalled" in line or "failed" in line or "error" in line]

    start("add.mjs", "1", "3").says("4: added")
    python.says("4: began")
    python.process.kill()
    second = start("renewer.py", LOCK_DURATION)
    node.says("4: stalled")
    second.says("4: began")
    node.says("4: completed")

    second.process.terminate()
    assert second.process.wait(60) == 0
    node.process.terminate()
    assert node.process.wait(60) == 0
