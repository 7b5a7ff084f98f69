"""
Runs the suite under ``gevent.monkey``, in several processes at once: ``python tests/run_patched.py``.

pytest-xdist cannot do it: the processes that it starts would not be patched. Each part is measured by coverage.
Arguments are for pytest, and make it one part.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

PATCHED = [sys.executable, "-m", "gevent.monkey", "--module", "coverage", "run", "-m", "pytest"]

HERE = Path(__file__).parent

ELSEWHERE = {"interop", "simulation", "chaos", "hosts/rq", "hosts/huey", "hosts/dramatiq", "hosts/contract"}
"""What has an environment of its own, because it needs more than the core."""

PARTS = [
    {"faults", "rules", "cli", "examples"},
    {"greenlets", "hosts"},
    {"recovery", "hosts/gevent_list", "protocol", "hooks"},
]
"""Each takes about as long as what they leave over, which is the last part."""


def parts() -> list[list[str]]:
    """Return what each process runs: every file of tests, in exactly one part."""
    chosen: list[list[str]] = [[] for _ in (*PARTS, "the rest")]
    for path in sorted(HERE.rglob("test_*.py")):
        folder = str(path.parent.relative_to(HERE))
        if folder not in ELSEWHERE:
            number = next((number for number, part in enumerate(PARTS) if folder in part), -1)
            chosen[number].append(str(path))
    return chosen


def main() -> int:
    """Run all parts side by side, print what each said once it has ended, and return the worst exit code."""
    worst = 0
    with contextlib.ExitStack() as files:
        runs = []
        for arguments in [sys.argv[1:]] if sys.argv[1:] else parts():
            said = files.enter_context(tempfile.TemporaryFile("w+"))
            runs.append((subprocess.Popen([*PATCHED, *arguments], stdout=said, stderr=subprocess.STDOUT), said))
        for process, said in runs:
            worst = max(worst, abs(process.wait()))
            said.seek(0)
            print(said.read(), flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main())
