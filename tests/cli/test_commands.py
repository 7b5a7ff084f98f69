"""The command line itself: help, version, missing extras, mistakes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import echomq_plugin


def run(*arguments, code=None):
    """Run the command line, or a piece of code, in a process of its own."""
    start = ["-c", code] if code else ["-m", "echomq_plugin"]
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_is_named_without_a_traceback(missing):
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom echomq_plugin.cli import main\nmain()"
    done = run("demo", code=code)
    assert done.returncode == 1
    assert done.stderr == "error: the command echomq-plugin needs the extra 'cli': pip install 'echomq-plugin[cli]'\n"


def test_a_missing_server_is_named_without_a_traceback():
    code = (
        "import echomq_plugin.embedded as embedded\n"
        "embedded.server_binaries = lambda: iter(())\n"
        "from echomq_plugin.cli import main\n"
        "main()"
    )
    done = run("demo", code=code)
    assert done.returncode == 1
    assert "pip install 'echomq-plugin[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_missing_modules_are_no_missing_extra():
    code = "import sys; sys.modules['echomq_plugin.cli.commands'] = None\nfrom echomq_plugin.cli import main\nmain()"
    done = run("demo", code=code)
    assert "ModuleNotFoundError" in done.stderr


def test_a_url_that_is_none_is_a_mistake_of_the_caller():
    done = run("demo", "--redis-url", "localhost")
    assert done.returncode == 2
    assert "--redis-url" in done.stderr
    assert "redis://host:port/db" in done.stderr


def test_help_names_the_demo_and_version_is_the_packages():
    helped = run("--help")
    assert helped.returncode == 0
    assert "demo" in helped.stdout
    assert "--json" in run("demo", "--help").stdout
    assert echomq_plugin.__version__ in run("--version").stdout
