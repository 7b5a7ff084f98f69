"""
Run RQ's own tests with our workers in place of its own, and compare with what they say of the stock workers.

``python tests/hosts/rq/run_rq_suite.py [pytest's own arguments]``, in an environment where the RQ to be tested, pytest
and psutil are installed. RQ's tests come with its source distribution, which is fetched from PyPI into a temporary
folder; nothing of it is kept. Exit status 1: a test fails with our workers that passes with the stock ones.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

from echomq_plugin.embedded import EmbeddedServer

HERE = Path(__file__).parent
EXIT_LIMIT_S = 20.0


def fetch_tests(folder: Path) -> Path:
    """Fetch the source distribution of the RQ that is installed; return the folder that holds its ``tests``."""
    name = f"rq-{version('rq')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "rq"]
    subprocess.run([*pip, f"rq=={version('rq')}", "--dest", str(folder)], check=True)
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        wanted = [member for member in archive.getmembers() if member.name.startswith(f"{name}/tests/")]
        archive.extractall(folder, wanted, filter="data")
    return folder / name


def use_port(source: Path, port: int) -> None:
    """The tests expect a server on the default port, which may be somebody's."""
    for path in source.rglob("*.py"):
        text = path.read_text()
        text = re.sub(r"\b6379\b", str(port), text)
        text = re.sub(r"\bdb=4\b", f"db=4, port={port}", text)
        text = re.sub(r"\bRedis\(\)", f"Redis(port={port})", text)
        path.write_text(
            text.replace("connection_kwargs = {'db': dbnum}", f"connection_kwargs = {{'db': dbnum, 'port': {port}}}")
        )


def run(source: Path, report: Path, arguments: list[str]) -> tuple[set[str], int, float]:
    """Run the tests; return the ids of those that failed, how many passed, and the seconds it took."""
    path = os.pathsep.join([str(HERE.parents[2]), str(HERE)])
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *arguments],
        cwd=source,
        # Some tests start `rq` itself.
        env={
            **os.environ,
            "PYTHONPATH": path,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        start_new_session=True,
    )
    while process.poll() is None and not report.exists():
        time.sleep(0.5)
    seconds = time.monotonic() - began
    try:
        process.wait(EXIT_LIMIT_S)
    except subprocess.TimeoutExpired:
        pass  # it waits for workers that a failed test has left behind
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    failed, passed = set(), 0
    for case in ElementTree.parse(report).iter("testcase"):  # written by pytest, just now
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is None:
            passed += 1
    return failed, passed, seconds


def main(arguments: list[str]) -> int:
    """Run the tests twice."""
    with tempfile.TemporaryDirectory() as temporary, EmbeddedServer(arguments=["--databases", "17"]) as server:
        source = fetch_tests(Path(temporary))
        use_port(source, server.port)
        arguments = arguments or ["tests"]
        stock, stock_passed, stock_s = run(source, source / "stock.xml", arguments)
        locked, locked_passed, locked_s = run(source, source / "locked.xml", ["-p", "locked_classes", *arguments])
    new = sorted(locked - stock)
    print(f"rq {version('rq')}, redis-py {version('redis')}")
    print(f"stock:  {stock_passed} passed, {len(stock)} failed in {stock_s:.0f} s: {sorted(stock)}")
    print(f"locked: {locked_passed} passed, {len(locked)} failed in {locked_s:.0f} s; new failures: {new}")
    return 1 if new or not locked_passed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
