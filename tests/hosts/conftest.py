"""What the tests of several hosts share."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def kill_in_mid_report(own_server, tmp_path) -> Callable[[str, Sequence[str], Sequence[str]], None]:
    """Run an example app as its page says: ``kill -9`` in the middle of three reports, and begin again."""

    def kill_in_mid_report(app: str, send: Sequence[str], work: Sequence[str]) -> None:
        folder = EXAMPLES / app
        environment = {
            **os.environ,
            "REDIS_URL": own_server.url,
            "ECHOMQ_LOCK_DURATION": "2000",
            "ECHOMQ_STALLED_INTERVAL": "1000",
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        }
        log = tmp_path / "log"
        workers = []

        def start():
            with log.open("ab") as output:
                streams = {"stdout": output, "stderr": output}
                workers.append(subprocess.Popen(work, env=environment, start_new_session=True, **streams))

        def wait_for(count, words):
            until = time.monotonic() + 60
            while log.read_text().count(words) < count:
                assert time.monotonic() < until, log.read_text()[-3000:]
                time.sleep(0.1)

        def kill_last():
            os.killpg(workers[-1].pid, signal.SIGKILL)
            workers.pop().wait()

        assert subprocess.run(send, cwd=folder, env=environment, check=False).returncode == 0
        start()
        try:
            wait_for(3, ": begun")
            kill_last()
            start()
            wait_for(3, "it is in the queue again")
            wait_for(6, ": begun")
            wait_for(3, ": done")
        finally:
            while workers:
                kill_last()

    return kill_in_mid_report
