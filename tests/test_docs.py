"""Documentation that cannot drift: what it shows is run, what it lists is compared, where it points to exists."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import echomq_plugin
from echomq_plugin import LockOptions
from echomq_plugin.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
LIMIT_S = 90


def python_blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def table_rows(page: Path, first_heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table with this heading in its first column."""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first_heading} |"):
            next(lines)
            break
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_the_readme_runs_as_printed_and_its_hook_hears_of_a_lost_lock(
    server: EmbeddedServer, client: redis.Redis, tmp_path: Path
) -> None:
    """The app is its first block, the hook its second; one of a hundred locks is deleted by hand."""
    app, alerts = python_blocks(README)
    assert "redis://localhost:6379" in app
    (tmp_path / "app.py").write_text(app.replace("redis://localhost:6379", server.url))
    (tmp_path / "alerts.py").write_text(alerts)
    # A lock that does not live as long as a job runs, and calls that have time on a busy machine.
    durations = {"ECHOMQ_LOCK_DURATION": "2800", "ECHOMQ_LOCK_RENEW_TIME": "700", "ECHOMQ_CALL_LIMIT_MS": "1000"}
    environment = {**os.environ, **durations, "ECHOMQ_PLUGINS": "alerts"}
    most_locks = [0]
    done = threading.Event()

    def delete_one_lock() -> None:
        deleted = False
        with redis.Redis.from_url(server.url) as connection:
            while not done.wait(0.05):
                most_locks[0] = max(most_locks[0], len(connection.keys("emq:mail:*:lock")))
                deleted = deleted or (most_locks[0] == 100 and connection.delete("emq:mail:mail-7:lock") == 1)

    watcher = threading.Thread(target=delete_one_lock)
    watcher.start()
    try:
        ran = subprocess.run(
            [sys.executable, "app.py"],
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    finally:
        done.set()
        watcher.join()
    assert ran.returncode == 0, ran.stderr
    assert most_locks == [100], ran.stderr
    assert ran.stdout.count("lost its lock") == 1, ran.stdout + ran.stderr
    assert "mail: mail-7 lost its lock (missing)" in ran.stdout
    assert not client.keys("emq:mail:*:lock")


def test_what_the_page_on_testing_shows_passes(tmp_path: Path) -> None:
    """It is written for people to copy."""
    (block,) = python_blocks(ROOT / "docs" / "testing.md")
    (tmp_path / "test_alarms.py").write_text(block)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, "test_alarms.py"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout


def test_the_table_of_options_is_the_options() -> None:
    """Every field in its order, its default and its variable."""
    expected = [
        [f"`{field.name}`", f"`{field.default}`", f"`ECHOMQ_{field.name.upper()}`"]
        for field in dataclasses.fields(LockOptions)
    ]
    documented = list(table_rows(ROOT / "docs" / "options.md", "Option"))
    assert [row[:3] for row in documented] == expected
    assert all(row[3] for row in documented)


def test_the_table_of_public_names_is_all() -> None:
    """What can be imported is documented, and what is documented can be imported."""
    documented = [row[0].strip("`") for row in table_rows(ROOT / "docs" / "index.md", "Name")]
    assert sorted(documented) == sorted(echomq_plugin.__all__)
    assert echomq_plugin.__all__ == sorted(echomq_plugin.__all__)
    for name in echomq_plugin.__all__:
        assert getattr(echomq_plugin, name).__doc__ or name == "hookimpl"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    """On any machine: a link is relative, and its file is part of the repository."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_host_that_is_named_exists(page: Path) -> None:
    """``make x``, ``python -m x`` and ``echomq_plugin.hosts.x``."""
    text = page.read_text()
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make (\w+)", text, flags=re.MULTILINE)) <= set(targets)
    for module in re.findall(r"python -m (benchmarks[\w.]*)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
    for name in re.findall(r"echomq_plugin\.hosts\.(\w+)", text):
        host = ROOT / "echomq_plugin" / "hosts" / name
        assert host.with_suffix(".py").is_file() or (host / "__init__.py").is_file(), name


def test_every_page_is_listed_on_the_first() -> None:
    """A page that nothing leads to is not read."""
    index = (ROOT / "docs" / "index.md").read_text()
    assert not [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name not in index and page.name != "index.md"
    ]
