"""The other runtimes: BullMQ for Node, installed once from the lock file, and the bullmq package for Python."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echomq_plugin.embedded import EmbeddedServer

HERE = Path(__file__).parent
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
GENEROUS_S = 60.0


def wait_until(condition: Callable[[], object], what: str, limit_s: float = GENEROUS_S) -> Any:
    """Wait for a condition, and return what it gave; the limit is there for hung tests, not for slow machines."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {limit_s:.0f} s in vain until {what}")


def missing(what: str) -> None:
    """Skip on a developer's machine, and fail in CI, which has everything."""
    if IN_CI:
        pytest.fail(f"{what}: CI must have it, see .ci/run and the tox environment `interop`")
    pytest.skip(f"{what}; CI has it and runs this test")


@pytest.fixture(scope="session")
def node_modules(pytestconfig: pytest.Config) -> Path:
    """The folder with the pinned npm packages, installed once for each state of the lock file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("Node and npm are not installed here")
    manifests = [HERE / "package.json", HERE / "package-lock.json"]
    state = hashlib.sha256(b"".join(path.read_bytes() for path in manifests)).hexdigest()[:16]
    cache = pytestconfig.cache.mkdir("interop") if pytestconfig.cache else HERE
    folder = Path(cache) / f"npm-{state}"
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}-{os.getpid()}")
        fresh.mkdir(parents=True)
        for path in manifests:
            shutil.copy(path, fresh)
        # No package of ours needs an install script, and a test should run none.
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(command, check=False, cwd=fresh, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        try:
            fresh.rename(folder)
        except OSError:  # another run was first
            shutil.rmtree(fresh)
    return folder / "node_modules"


@pytest.fixture(scope="session")
def bullmq_python() -> Path:
    """The folder of the bullmq package for Python."""
    try:
        import bullmq
    except ImportError:
        missing("the bullmq package for Python is not installed here")
    return Path(str(bullmq.__file__)).parent


class NodePeer:
    """A Node process that does with BullMQ what it is told, one JSON line each way; see ``peer.mjs``."""

    def __init__(self, node_modules: Path, url: str) -> None:
        self.process = subprocess.Popen(
            ["node", str(HERE / "peer.mjs"), str(node_modules), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, action: str, **arguments: object) -> Any:
        """Have one thing done, and return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"action": action, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the Node process ended while it was to {action}"
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{action}: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def node(node_modules: Path, server: EmbeddedServer, client: object) -> Iterator[NodePeer]:
    """A Node process connected to the shared server, which is empty."""
    peer = NodePeer(node_modules, server.url)
    yield peer
    peer.close()
