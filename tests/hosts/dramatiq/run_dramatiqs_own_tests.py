"""
Run Dramatiq's own tests of its Redis broker with every message under a lock, and beside it without.

``python tests/hosts/dramatiq/run_dramatiqs_own_tests.py``: exits 0 when locks add no failure. It fetches the source
distribution of the installed version. That carries the tests but not their fixtures, so it brings a few of its own:
enough for the tests of the Redis broker. It is not part of the suite.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from echomq_plugin.embedded import EmbeddedServer

FIXTURES = """
import os

import pytest
import dramatiq
from dramatiq.brokers.redis import RedisBroker


@pytest.fixture
def redis_broker():
    broker = RedisBroker(url=os.environ["OWN_TESTS_URL"])
    broker.client.flushall()
    if os.environ["OWN_TESTS_MODE"] == "locked":
        from echomq_plugin.hosts.dramatiq import LockMiddleware

        broker.add_middleware(LockMiddleware())
    dramatiq.set_broker(broker)
    yield broker
    broker.client.flushall()
    broker.close()


@pytest.fixture
def redis_worker(redis_broker):
    worker = dramatiq.Worker(redis_broker, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()
"""

HELPERS = """
from contextlib import contextmanager

import dramatiq


@contextmanager
def worker(*args, **kwargs):
    made = dramatiq.Worker(*args, **kwargs)
    made.start()
    try:
        yield made
    finally:
        made.stop()
"""


def fetch(folder: Path) -> Path:
    """Return the folder of the tests of the installed version, with fixtures of ours."""
    wanted = f"dramatiq=={version('dramatiq')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "dramatiq", wanted]
    subprocess.run([*command, "--dest", str(folder)], check=True)
    with tarfile.open(next(folder.glob("dramatiq-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    tests = next(folder.glob("dramatiq-*/tests"))
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(FIXTURES)
    (tests / "common.py").write_text(HELPERS)
    return tests


def run(tests: Path, mode: str) -> set[str]:
    """Run the tests once; return those that failed."""
    with EmbeddedServer() as server:
        output = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-o", "addopts=", "test_redis.py"],
            env={
                **os.environ,
                "OWN_TESTS_URL": server.url,
                "OWN_TESTS_MODE": mode,
                "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
            },
            cwd=tests,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    print(mode, output.splitlines()[-1])
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE))
    if not re.search(r"^PASSED", output, re.MULTILINE):
        raise SystemExit(output[-3000:])
    return failed


def main() -> int:
    """Run both."""
    with tempfile.TemporaryDirectory() as folder:
        tests = fetch(Path(folder))
        stock, locked = run(tests, "stock"), run(tests, "locked")
    new = sorted(locked - stock)
    figures = {"host": "dramatiq", "version": version("dramatiq"), "stock_failures": sorted(stock), "new_failures": new}
    print(json.dumps(figures))
    return 1 if new else 0


if __name__ == "__main__":
    raise SystemExit(main())
