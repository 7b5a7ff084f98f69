"""Jobs as any RQ app has them: nothing here knows of locks."""

from __future__ import annotations

import os
import time


def report(number: int) -> str:
    """Work for twenty seconds."""
    print(f"report {number} starts in process {os.getpid()}", flush=True)
    time.sleep(20)
    print(f"report {number} is done", flush=True)
    return f"report {number}"
