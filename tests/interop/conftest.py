"""The other runtimes: BullMQ for Node, installed once from the lock file, and the bullmq package for Python."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echomq_plugin.embedded import EmbeddedServer
from interop.peers import HERE, NodePeer, RenewingProcess

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


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


@pytest.fixture
def renewing_process(server: EmbeddedServer) -> Iterator[Callable[..., RenewingProcess]]:
    """Start Python processes that renew: ``renewing_process(queue, prefix, lock_duration)``."""
    started: list[RenewingProcess] = []

    def start(queue: str, prefix: str, lock_duration: int) -> RenewingProcess:
        started.append(RenewingProcess(server.url, queue, prefix, lock_duration))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def node(node_modules: Path, server: EmbeddedServer, client: object) -> Iterator[NodePeer]:
    """A Node process connected to the shared server, which is empty."""
    peer = NodePeer(node_modules, server.url)
    yield peer
    peer.close()
