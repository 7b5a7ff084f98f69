"""MONITOR: what a server was asked to do, by clients and by scripts."""

from __future__ import annotations

import codecs
import re
import socket
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

_LINE = re.compile(rb"\+[\d.]+ \[\d+ ([^\]]+)\] (.*)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


class Asked(NamedTuple):
    """One command: its words, and whether a script ran it."""

    words: tuple[bytes, ...]
    by_script: bool


class Monitor:
    """Records the commands between ``with`` and ``stop``, in the order in which the server ran them."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=30)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Monitor:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._file.readline() == b"+OK\r\n"
        return self

    def until(self, mark: bytes) -> list[Asked]:
        """Return the commands before the first that contains a mark; somebody must send such a one."""
        asked: list[Asked] = []
        for line in self._file:
            match = _LINE.match(line)
            assert match is not None, line
            words = tuple(codecs.escape_decode(word)[0] for word in _WORD.findall(match[2]))
            if mark in words:
                return asked
            asked.append(Asked(words, match[1] == b"lua"))
        raise AssertionError("the server closed the connection")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._socket.close()
