"""
Wire: sends scripts. Calls EVALSHA, heals NOSCRIPT, sends many in one round trip, and reads replies.

Every call has the one limit of its connection, raises RedisCallError when there is no usable answer, and switches
greenlets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import gevent
import msgpack
from redis.exceptions import NoScriptError

from echomq_plugin.connections import Client, Connections
from echomq_plugin.errors import RedisCallError
from echomq_plugin.lua_files import LuaScript, lua_script
from echomq_plugin.native import uses_gevent

MOST_IDS_A_CALL = 500
"""The most ids that one call of our own scripts serves, so that none keeps Redis busy for long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Command:
    """One EVALSHA, ready to send."""

    script: LuaScript
    keys: tuple[str, ...]
    arguments: tuple[Any, ...]

    def words(self, *, whole: bool = False) -> tuple[Any, ...]:
        """Return the command; ``whole``: with the script's text, for a server that does not know it."""
        name, script = ("EVAL", self.script.body) if whole else ("EVALSHA", self.script.sha)
        return (name, script, len(self.keys), *self.keys, *self.arguments)


def text(value: object) -> str:
    """Decode one id or token of a reply; what other runtimes wrote may be any bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, str):
        return value
    raise TypeError(f"expected text in a reply, not {type(value).__name__}")


def packed(words: Sequence[str]) -> bytes:
    """Pack text for the frozen script; always as msgpack *str*, which every server's unpacker reads."""
    result: bytes = msgpack.packb(words, use_bin_type=True)
    return result


def chunks(items: Iterable[T], size: int) -> Iterable[list[T]]:
    """Cut into lists of at most ``size``."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class Wire:
    """
    Sends scripts to one server.

    Args:
        connections: where to.
        names: the scripts, by the names of their files; a missing file is noticed here and not in a tick.

    """

    names: tuple[str, ...] = ()

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self._lua = {name: lua_script(name) for name in self.names}

    def run(
        self,
        operation: str,
        name: str,
        keys: tuple[str, ...],
        arguments: tuple[Any, ...],
        read: Callable[[Any], T],
    ) -> T:
        """
        Run one script.

        Args:
            operation: what is asked for, in words, for the error.
            name: the script's file.
            keys: KEYS.
            arguments: ARGV.
            read: makes a value of the reply; what it raises is a RedisCallError too.

        """
        command = Command(self._lua[name], keys, arguments)

        def ask(client: Client) -> T:
            return read(_evaluated(client, command))

        return self.connections.call(operation, ask)

    def run_all(self, operation: str, commands: Sequence[Command]) -> list[Any]:
        """Run commands in one round trip, or side by side on a cluster; an error stands in for its own reply."""
        if not commands:
            return []
        if self.connections.is_cluster and len(commands) > 1:
            # Asked once: a node that hangs would be asked by some of these each time, and always by the same.
            self.connections.call(operation, lambda client: client.learn_slots())
            # Each under a limit of its own: a node that hangs must not cost the others their answers.
            call = partial(self.connections.call, operation)
            return _side_by_side([partial(call, partial(_evaluated, command=command)) for command in commands])

        def ask(client: Client) -> list[Any]:
            if len(commands) == 1:
                return [_evaluated(client, commands[0])]
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command.words())
            replies: list[Any] = pipeline.execute(raise_on_error=False)
            return [
                _reply_or_error(partial(_evaluated, client, command)) if isinstance(reply, NoScriptError) else reply
                for command, reply in zip(commands, replies, strict=True)
            ]

        return self.connections.call(operation, ask)

    def scan(self, operation: str, key: str, cursor: int) -> tuple[int, list[str]]:
        """Return the next cursor (0: the end) and some fields of a hash; a field may come twice."""

        def ask(client: Client) -> tuple[int, list[str]]:
            reply = client.execute_command("HSCAN", key, cursor, "COUNT", MOST_IDS_A_CALL)
            following, fields = reply
            return int(following), [text(field) for field in fields]

        return self.connections.call(operation, ask)


def _evaluated(client: Client, command: Command) -> Any:
    """Run a script by its hash; a server that was restarted, or that has never seen it, gets its text."""
    try:
        return client.execute_command(*command.words())
    except NoScriptError:
        return client.execute_command(*command.words(whole=True))


def _side_by_side(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls at the same time where there is a hub, else one after the other; errors stand in for replies."""
    if not uses_gevent():
        return [_reply_or_error(call) for call in calls]
    greenlets = [gevent.spawn(_reply_or_error, call) for call in calls]
    try:
        gevent.joinall(greenlets)
    finally:
        gevent.killall(greenlets, block=False)
    return [greenlet.value for greenlet in greenlets]


def _reply_or_error(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def call_error(operation: str, error: BaseException) -> RedisCallError:
    """Make the error of one reply among many; one that is such already stays as it is."""
    if isinstance(error, RedisCallError):
        return error
    failure = RedisCallError(operation, f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def texts(reply: Any) -> list[str]:
    """Decode a reply that is a list of ids."""
    return [text(item) for item in reply]
