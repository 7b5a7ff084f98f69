"""
A TCP proxy between a client and a Redis server that does on purpose what networks do by accident.

It speaks enough RESP to treat one command and its reply as one exchange, so that a fault hits exactly one of them:
the connection is cut after the server ran a script and before its reply arrives, a reply comes late, never, or is
another one. Native threads and sockets throughout: it turns whatever the hub of the test does, patched or not.
"""

from __future__ import annotations

import _socket
import socket
from collections.abc import Callable
from typing import Any

from echomq_plugin.lua_files import lua_script
from echomq_plugin.native import allocate_lock, native_sleep, start_thread

Command = list[bytes]
Matches = Callable[[Command], bool]

LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
BUSY = b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"
NOPERM = b"-NOPERM this user has no permissions to run the 'evalsha' command\r\n"
NOT_A_LIST = b":7\r\n"


def every_command(_: Command) -> bool:
    """Match whatever a client sends."""
    return True


def script(name: str) -> Matches:
    """Match the calls of one Lua file, by its hash or with its text."""
    lua = lua_script(name)
    names = {lua.sha.encode(), lua.body.encode()}
    return lambda command: len(command) > 1 and command[0].upper() in (b"EVALSHA", b"EVAL") and command[1] in names


def named(*names: str) -> Matches:
    """Match commands by their names."""
    wanted = {name.upper().encode() for name in names}
    return lambda command: command[0].upper() in wanted


class Cut(Exception):
    """Ends a connection, without a word to either side."""


class Exchange:
    """One command of a client, on its way."""

    def __init__(self, command: Command, raw: bytes, link: _Link) -> None:
        self.command = command
        self._raw = raw
        self._link = link

    def ask(self) -> bytes:
        """Let the server run the command, and return its reply as it came."""
        return self._link.ask(self._raw)

    def answer(self, reply: bytes) -> None:
        """Send the client a reply."""
        self._link.to_client.sendall(reply)


Fault = Callable[[Exchange], None]


def forward(exchange: Exchange) -> None:
    """No fault."""
    exchange.answer(exchange.ask())


def cut_before(_: Exchange) -> None:
    """Cut the connection; the server has not seen the command."""
    raise Cut


def cut_after(exchange: Exchange) -> None:
    """Cut the connection after the server ran the command: its reply is lost."""
    exchange.ask()
    raise Cut


def cut_in_the_middle(exchange: Exchange) -> None:
    """Cut the connection after the first byte of the server's reply."""
    exchange.answer(exchange.ask()[:1])
    raise Cut


def drip(exchange: Exchange) -> None:
    """Answer a byte now and then, for as long as the client listens, with a reply that never ends."""
    exchange.answer(b"$1000000\r\n")
    while True:
        native_sleep(0.1)
        exchange.answer(b"x")


def swallow_reply(exchange: Exchange) -> None:
    """Let the server run the command, and leave the client waiting on an open connection."""
    exchange.ask()


def swallow(_: Exchange) -> None:
    """A black hole: the server sees nothing, the client hears nothing."""


def reply(raw: bytes) -> Fault:
    """Answer in the server's place; the server has not seen the command."""
    return lambda exchange: exchange.answer(raw)


def delay(before_ms: int = 0, after_ms: int = 0) -> Fault:
    """Hold the command back before the server sees it, and its reply after."""

    def fault(exchange: Exchange) -> None:
        native_sleep(before_ms / 1000)
        answer = exchange.ask()
        native_sleep(after_ms / 1000)
        exchange.answer(answer)

    return fault


class Rule:
    """Which commands a fault hits, and how often."""

    def __init__(self, matches: Matches, fault: Fault, times: int | None) -> None:
        self.matches = matches
        self.fault = fault
        self.left = times
        self.hits = 0


class FaultProxy:
    """
    Listens on a free port of 127.0.0.1; a context manager.

    Args:
        target_port: the server's port.
        port: port to listen on; 0: a free one.

    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.target_port = target_port
        self.commands: list[Command] = []
        self._lock = allocate_lock()
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._listener: Any = None
        self.port = port

    @property
    def url(self) -> str:
        """The URL of the server, by way of this proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> FaultProxy:
        """Listen, on the port of before if there was one."""
        listener = _plain_socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        start_thread(lambda: self._accept(listener))
        return self

    def stop(self) -> None:
        """Refuse connections and cut those that are open, as a server that went away."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            _shut(listener)
        self.cut_all()

    def cut_all(self) -> None:
        """Cut every connection; new ones are taken."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def move_to(self, target_port: int) -> None:
        """Lead new connections to another server; those that are open stay where they are."""
        self.target_port = target_port

    def on(self, matches: Matches, fault: Fault, times: int | None = None) -> Rule:
        """Add a rule before all others; ``times``: how often it applies, None: until it is taken away."""
        rule = Rule(matches, fault, times)
        with self._lock:
            self._rules.insert(0, rule)
        return rule

    def clear(self) -> None:
        """Take all rules away."""
        with self._lock:
            self._rules.clear()

    def count(self, matches: Matches) -> int:
        """Tell how many commands of a kind were seen so far."""
        with self._lock:
            return sum(matches(command) for command in self.commands)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fault_for(self, command: Command) -> Fault:
        """Note a command, and return what is to become of it."""
        with self._lock:
            self.commands.append(command)
            for rule in self._rules:
                if rule.left != 0 and rule.matches(command):
                    rule.hits += 1
                    if rule.left is not None:
                        rule.left -= 1
                    return rule.fault
        return forward

    def _accept(self, listener: Any) -> None:
        while True:
            try:
                descriptor, _ = listener._accept()
            except OSError:
                return
            link = _Link(self, _socket.socket(fileno=descriptor))
            with self._lock:
                self._links.add(link)
            start_thread(link.run)

    def forget(self, link: _Link) -> None:
        """A connection has ended."""
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy, to_client: Any) -> None:
        self.to_client = to_client
        self._proxy = proxy
        self._to_server: Any = None
        self._replies: _Reader | None = None

    def run(self) -> None:
        requests = _Reader(self.to_client)
        try:
            while True:
                raw, command = requests.frame()
                self._proxy.fault_for(command)(Exchange(command, raw, self))
        except (OSError, Cut, EOFError):
            pass
        finally:
            self.close()
            self._proxy.forget(self)

    def ask(self, raw: bytes) -> bytes:
        if self._to_server is None:
            server = _plain_socket()
            server.connect(("127.0.0.1", self._proxy.target_port))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._to_server, self._replies = server, _Reader(server)
        self._to_server.sendall(raw)
        assert self._replies is not None
        return self._replies.frame()[0]

    def close(self) -> None:
        for sock in (self.to_client, self._to_server):
            if sock is not None:
                _shut(sock)


class _Reader:
    """Cuts a stream of RESP2 or RESP3 into whole values."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._buffer = b""

    def frame(self) -> tuple[bytes, Command]:
        """Return the next value: as it came, and its bulk strings one after the other."""
        words: Command = []
        return self._value(words), words

    def _value(self, words: Command) -> bytes:
        line = self._line()
        kind, rest = line[:1], line[1:-2]
        if kind in (b"$", b"=", b"!"):
            if rest == b"-1":
                return line
            body = self._exactly(int(rest) + 2)
            words.append(body[:-2])
            return line + body
        if kind in (b"*", b"~", b">", b"%") and rest != b"-1":
            pairs = 2 if kind == b"%" else 1
            return line + b"".join(self._value(words) for _ in range(int(rest) * pairs))
        return line

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._more()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line + b"\r\n"

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _more(self) -> None:
        data = self._sock.recv(65_536)
        if not data:
            raise EOFError
        self._buffer += data


def _plain_socket() -> Any:
    # The C class: it never waits through a hub, and neither do the sockets that it accepts.
    return _socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def _shut(sock: Any) -> None:
    """Close, waking the native thread that waits on it."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it was never connected, or its other end is gone
    sock.close()
