"""The worker on the page about lists runs as printed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gevent.md"


def test_the_worker_on_the_page_runs_as_printed(client, server, tmp_path, wait_until):
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "worker.py").write_text(block.replace("redis://localhost:6379", server.url))
    client.lpush("mail", "42 to ann", "43 to bob")
    worker = subprocess.Popen(
        [sys.executable, "-W", "error", "worker.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: client.get("emq:mail:fence") == b"2" and not client.exists("mail:processing"), "both ran")
        worker.send_signal(signal.SIGTERM)
        output, _ = worker.communicate(timeout=45)
    finally:
        worker.kill()
        worker.wait(45)
    assert worker.returncode == 0, output
    assert output.splitlines() == ["sending 42 to ann, run 1 of this queue", "sending 43 to bob, run 2 of this queue"]
