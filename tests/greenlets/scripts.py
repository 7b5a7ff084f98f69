"""Scripts that run in a Python of their own: what a test process has imported, patched or started must not matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

from gevent import monkey

PRELUDE = """
import sys
PATCHED, URL = sys.argv[1] == "patched", sys.argv[2]
if PATCHED:
    from gevent import monkey
    monkey.patch_all()
import json, logging, os, time
logging.getLogger("echomq_plugin").addHandler(logging.NullHandler())  # else its lines go to standard error

def say(**values):
    print(json.dumps(values), flush=True)

def eventually(condition, limit_s=30):
    from echomq_plugin.native import pause
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "never came true"
        pause(0.01)
"""

MODES = ("patched",) if monkey.is_module_patched("socket") else ("plain",)
"""The suite runs plain and monkey-patched, and so do its scripts: each kind of script once in the two runs."""


def start_script(source: str, mode: str, url: str, *arguments: str, prelude: str = PRELUDE) -> subprocess.Popen[str]:
    """Start a script; it says things as lines of JSON on its standard output."""
    # With every warning an error, as in the suite; a fork beside native threads is what some of these are about.
    options = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    return subprocess.Popen(
        [sys.executable, *options, "-c", prelude + textwrap.dedent(source), mode, url, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def end_of(process: subprocess.Popen[str], limit_s: float = 60) -> list[dict[str, Any]]:
    """Wait for a script's end, check that nothing went wrong in it, and return what it said."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"did not end within {limit_s} s:\n{out}\n{err}") from None
    assert process.returncode == 0, f"ended with {process.returncode}:\n{out}\n{err}"
    assert err == "", err
    return [json.loads(line) for line in out.splitlines()]


def run_script(source: str, mode: str, url: str, *arguments: str, limit_s: float = 60) -> list[dict[str, Any]]:
    """Run a script to its end; see ``end_of``."""
    return end_of(start_script(source, mode, url, *arguments), limit_s)
