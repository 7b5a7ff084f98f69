"""The examples run as printed, in a process of their own, on every way of naming a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_example(name, *arguments, **environment):
    """Run an example with warnings as errors; return its lines."""
    clean = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def assert_bare_gevent(lines):
    assert any(line == "tick: 4 locks renewed in one call" for line in lines)
    assert sum(line.startswith("lost: job-3 (missing)") for line in lines) == 1
    assert sum(line.startswith("stopped: the lock of job 'job-3'") for line in lines) == 1
    assert sorted(line for line in lines if line.startswith("done")) == [f"done: job-{number}" for number in range(5)]
    assert lines[-1] == "done: job-3"


def assert_own_host(lines):
    assert lines[0].startswith("book: on the road already")
    assert sorted(line for line in lines if line.endswith("delivered")) == [
        "book: delivered",
        "lamp: delivered",
        "vase: delivered",
    ]
    assert lines[-2:] == ["vase: its worker died, 1 time(s) so far", "vase: delivered"]


CASES = {"bare_gevent.py": assert_bare_gevent, "own_host.py": assert_own_host}


@pytest.mark.parametrize("name", CASES)
def test_an_example_runs_on_a_server_named_on_the_command_line(client, server, name):
    CASES[name](run_example(name, server.url))
    # No lock, no entry and no item is left behind; only what the library keeps by design.
    left = {key.decode().split(":")[-1] for key in client.scan_iter("*")}
    assert left <= {"queues", "fence", "held-check"}


def test_an_example_runs_on_the_server_that_the_environment_names(client, server):
    assert_own_host(run_example("own_host.py", REDIS_URL=server.url))
    assert client.exists("emq:courier:fence")


@pytest.mark.parametrize("name", CASES)
def test_an_example_starts_a_server_of_its_own(name):
    CASES[name](run_example(name))


def test_every_example_of_the_bare_host_is_run_here():
    assert set(CASES) <= {path.name for path in EXAMPLES.glob("*.py")}
