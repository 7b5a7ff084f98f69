"""The example app does what its page says, on a server of the test's."""

from __future__ import annotations

import sys
from pathlib import Path


def test_reports_of_killed_workers_are_begun_again(kill_in_mid_report):
    """``kill -9`` in the middle of three reports; the next workers get them back with their ids."""
    program = str(Path(sys.executable).with_name("dramatiq-gevent"))
    kill_in_mid_report(
        "dramatiq_app",
        send=[sys.executable, "-c", "import app; [app.report.send(month, seconds=2) for month in 'ABC']"],
        work=[sys.executable, program, "app", "--processes", "2", "--threads", "20"],
    )
