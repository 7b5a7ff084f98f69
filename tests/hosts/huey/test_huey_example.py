"""The example app does what its page says, on a server of the test's."""

from __future__ import annotations

import sys
from pathlib import Path


def test_reports_of_a_killed_consumer_are_begun_again(kill_in_mid_report):
    """``kill -9`` in the middle of three reports; the next consumer gets them back with their ids."""
    consumer = [sys.executable, "-m", "gevent.monkey", str(Path(sys.executable).with_name("huey_consumer"))]
    kill_in_mid_report(
        "huey_app",
        send=[sys.executable, "send.py", "2"],
        work=[*consumer, "app.huey", "-k", "greenlet", "-w", "20"],
    )
