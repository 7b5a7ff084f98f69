"""The example app does what its page says, on a server of the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "huey_app"


def test_reports_of_a_killed_consumer_are_begun_again(own_server, tmp_path):
    """``kill -9`` in the middle of three reports; the next consumer gets them back with their ids."""
    environment = {
        **os.environ,
        "REDIS_URL": own_server.url,
        "ECHOMQ_LOCK_DURATION": "2000",
        "ECHOMQ_STALLED_INTERVAL": "1000",
        "PYTHONPATH": os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")]),
    }
    log = tmp_path / "log"
    consumer = [sys.executable, "-m", "gevent.monkey", str(Path(sys.executable).with_name("huey_consumer"))]

    def start():
        with log.open("ab") as output:
            command = [*consumer, "app.huey", "-k", "greenlet", "-w", "20"]
            return subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)

    def wait_for(count, words):
        until = time.monotonic() + 60
        while log.read_text().count(words) < count:
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.1)

    sent = subprocess.run([sys.executable, "send.py", "2"], cwd=EXAMPLE, env=environment, check=False)
    assert sent.returncode == 0
    first = start()
    try:
        wait_for(3, ": begun")
        os.killpg(first.pid, signal.SIGKILL)
        second = start()
        try:
            wait_for(3, "it is in the queue again")
            wait_for(6, ": begun")
            wait_for(3, ": done")
        finally:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()
