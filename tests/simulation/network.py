"""
The simulated network between workers and the one server, with its faults.

``SimConnections`` stands in for ``Connections``: the scripts' real callers run above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError

from .model_server import ModelServer
from .world import Machine, World, current_strand

T = TypeVar("T")

LATE = object()


@dataclass
class Weather:
    """How likely each fault of a single message is, in per mille, and how long a delayed one is under way."""

    lost_request: int = 0
    lost_reply: int = 0
    reset: int = 0
    delayed: int = 0
    most_delay_ms: int = 0

    @property
    def calm(self) -> bool:
        return not (self.lost_request or self.lost_reply or self.reset or self.delayed)


CALM = Weather()


class Site:
    """The server's machine: up, standing still, down, or refusing to serve."""

    def __init__(self, world: World, server: ModelServer, dice: Random) -> None:
        self.world = world
        self.server = server
        self.dice = dice
        self.weather = CALM
        self.down = False
        self.paused = False
        self.refusal: Callable[[], Exception] | None = None
        self._held_up: list[tuple[int, Callable[[], None]]] = []
        self._lives = 0

    @property
    def healthy(self) -> bool:
        return not self.down and not self.paused and self.refusal is None

    def receive(self, life: int, request: Callable[[], None]) -> None:
        if self.paused:
            self._held_up.append((life, request))
        elif life == self._lives:
            request()

    def resume(self) -> None:
        self.paused = False
        held_up, self._held_up = self._held_up, []
        for life, request in held_up:
            self.world.after(0, self.receive, life, request)

    def stop(self) -> None:
        """Go down: requests that are under way reach nobody."""
        self.down = True
        self._lives += 1

    @property
    def life(self) -> int:
        return self._lives


def read_only() -> Exception:
    return ReadOnlyError("You can't write against a read only replica.")


def loading() -> Exception:
    return ResponseError("LOADING Redis is loading the dataset in memory")


def out_of_memory() -> Exception:
    return ResponseError("OOM command not allowed when used memory > 'maxmemory'.")


class SimConnections(Connections):
    """What one machine reaches the server with."""

    def __init__(self, site: Site, machine: Machine, call_limit_ms: int) -> None:
        self.site = site
        self.machine = machine
        self.call_limit_ms = call_limit_ms
        self.trouble_at = 0
        self.cut_off = False

    @property
    def is_cluster(self) -> bool:
        return False

    def call(self, operation: str, work: Callable[[Any], T], *, limit_ms: int | None = None) -> T:
        until = self.machine.world.now + (limit_ms or self.call_limit_ms)
        try:
            return work(SimClient(self, until))
        except Exception as error:
            self.trouble_at = self.machine.world.now
            raise RedisCallError(operation, f"{type(error).__name__}: {error}") from error

    def load(self) -> None:
        pass

    def drop_idle(self) -> None:
        pass

    def close_thread(self) -> None:
        pass


class SimClient:
    """One call's connection."""

    def __init__(self, connections: SimConnections, until: int) -> None:
        self._connections = connections
        self._until = until

    def execute_command(self, *words: Any) -> Any:
        reply = self.round_trip([words])[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    def pipeline(self, transaction: bool) -> SimPipeline:
        assert not transaction
        return SimPipeline(self)

    def round_trip(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        site, world = self._connections.site, self._connections.machine.world
        strand = current_strand()
        ticket = strand.next_ticket()
        dice, weather = site.dice, site.weather
        out_ms, back_ms = dice.randint(0, 3), dice.randint(0, 3)
        how_many = len(commands)
        answered = True
        reset = False
        if not weather.calm:
            throw = dice.randrange(1000)
            if throw < weather.lost_request:
                how_many, answered = 0, False
            elif (throw := throw - weather.lost_request) < weather.lost_reply:
                answered = False
            elif (throw := throw - weather.lost_reply) < weather.reset:
                # The connection breaks somewhere: perhaps before the first command has run, perhaps after the last.
                how_many, reset = dice.randint(0, how_many), True
            elif throw - weather.reset < weather.delayed:
                late_ms = dice.randint(1, weather.most_delay_ms)
                if dice.random() < 0.5:
                    out_ms += late_ms
                else:
                    back_ms += late_ms
        if self._connections.cut_off:
            pass  # a half-open link: nothing arrives, and nothing says so
        elif site.down:
            world.after(1, strand.deliver, ticket, RedisConnectionError("connection refused"))
        elif how_many or reset:

            def request() -> None:
                replies: list[Any] | Exception = [_execute(site, command) for command in commands[:how_many]]
                if reset:
                    replies = RedisConnectionError("connection reset")
                if answered:
                    world.after(back_ms, strand.deliver, ticket, replies)

            world.after(out_ms, site.receive, site.life, request)
        left = self._until - world.now
        world.after(left, strand.deliver, ticket, LATE)
        replies = strand.wait()
        if replies is LATE:
            raise RedisTimeoutError("no answer in time")
        if isinstance(replies, Exception):
            raise replies
        return replies


def _execute(site: Site, words: tuple[Any, ...]) -> Any:
    if site.refusal is not None:
        return site.refusal()
    try:
        return site.server.execute(words)
    except (NoScriptError, ResponseError) as error:
        return error


class SimPipeline:
    """Several commands in one round trip; others' commands may come between them."""

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *words: Any) -> None:
        self._commands.append(words)

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        replies = self._client.round_trip(self._commands)
        for reply in replies:
            if raise_on_error and isinstance(reply, Exception):
                raise reply
        return replies
