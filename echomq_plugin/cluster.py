"""
ClusterClient: sends single commands to the node that has their key. No more than the scripts need.

redis-py's own cluster client brings its own sockets, sleeps and retries, so that no limit of ours could hold; on plain
sockets it would also stop a whole hub. Here every node's connections are the same as for a single server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import redis
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, ResponseError

Address = tuple[str, int]

MOST_REDIRECTIONS: Final = 5
"""A command that was sent on so often is given up: the cluster does not know yet who has the slot."""


class ClusterClient:
    """
    Routes commands over the nodes of a cluster. Used by one native thread.

    Args:
        nodes: where the cluster may be asked about itself.
        make_node: makes the client of one node; no I/O.

    """

    def __init__(self, nodes: Sequence[Address], make_node: Callable[[str, int], redis.Redis]) -> None:
        self._make_node = make_node
        self._to_ask: deque[Address] = deque(nodes)
        self._nodes: dict[Address, redis.Redis] = {}
        self._slots: list[tuple[int, int, Address]] = []

    def execute_command(self, *words: Any) -> Any:
        """
        Send one command to the master that has its key. Switches greenlets.

        Raises:
            redis.RedisError: what that node answered, or why it did not.

        """
        slot = key_slot(_first_key(words))
        address = self._address_of(slot)
        asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._send(address, words, asking=asking)
            except ResponseError as error:
                target = _redirection(error)
                if target is None:
                    raise
                asking, host, port = target
                address = (host or address[0], port)
                if not asking:
                    self._slots.insert(0, (slot, slot, address))
            except Exception:
                # That node may be a master no more: ask again before the next command.
                self._slots.clear()
                raise
        self._slots.clear()
        raise ResponseError(f"slot {slot} was looked for on {MOST_REDIRECTIONS} nodes")

    def masters(self) -> list[Any]:
        """Return a client of each master that has slots. Switches greenlets."""
        self._address_of(0)
        return [self._node(address) for address in dict.fromkeys(address for _, _, address in self._slots)]

    def learn_slots(self) -> None:
        """Ask who has which slots, unless that is known. Switches greenlets."""
        if not self._slots:
            self._slots = self._ask_for_slots()

    def pools(self) -> list[Any]:
        """Return the pools of all its connections."""
        return [node.connection_pool for node in self._nodes.values()]

    def forget(self) -> None:
        """Ask the cluster about itself before the next command: something went wrong."""
        self._slots.clear()

    def _send(self, address: Address, words: tuple[Any, ...], *, asking: bool) -> Any:
        node: Any = self._node(address)
        if not asking:
            return node.execute_command(*words)
        pipeline = node.pipeline(transaction=False)  # both on one connection
        pipeline.execute_command("ASKING")
        pipeline.execute_command(*words)
        return pipeline.execute()[1]

    def _node(self, address: Address) -> redis.Redis:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self._make_node(*address)
        return node

    def _address_of(self, slot: int) -> Address:
        self.learn_slots()
        for first, last, address in self._slots:
            if first <= slot <= last:
                return address
        self._slots.clear()
        raise ResponseError(f"CLUSTERDOWN nobody serves slot {slot}")

    def _ask_for_slots(self) -> list[tuple[int, int, Address]]:
        failure: Exception | None = None
        for _ in range(len(self._to_ask)):
            address = self._to_ask[0]
            # Before it is asked: a node that never answers ends the call, and the next call begins with another node.
            self._to_ask.rotate(-1)
            try:
                # In two words, so that no version of the driver makes its own of the reply.
                reply = self._send(address, ("CLUSTER", "SLOTS"), asking=False)
            except Exception as error:
                failure = error
                continue
            slots, nodes = _read_slots(reply, address[0])
            self._to_ask = deque(dict.fromkeys([address, *nodes, *self._to_ask]))
            return slots
        raise failure or ResponseError("the cluster has no nodes")


def _read_slots(reply: Any, asked_host: str) -> tuple[list[tuple[int, int, Address]], list[Address]]:
    slots: list[tuple[int, int, Address]] = []
    nodes: list[Address] = []
    for first, last, *members in reply:
        # A node that does not know its own name means the one under which it was asked.
        known = [(_text(member[0]) or asked_host, int(member[1])) for member in members]
        slots.append((int(first), int(last), known[0]))
        nodes += known
    return slots, nodes


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name or "")


def _first_key(words: tuple[Any, ...]) -> bytes:
    key = words[3] if words[0] in ("EVALSHA", "EVAL") else words[1]
    return key if isinstance(key, bytes) else str(key).encode()


def _redirection(error: ResponseError) -> tuple[bool, str, int] | None:
    """Read where a command is to be sent on: (for this once, host or "", port)."""
    if isinstance(error, AskError):  # and so is MovedError
        return not isinstance(error, MovedError), str(error.host), int(error.port)
    # Older drivers know these errors only in their own cluster client.
    kind, _, rest = str(error).partition(" ")
    if kind not in ("ASK", "MOVED"):
        return None
    host, _, port = rest.split(" ")[1].rpartition(":")
    return kind == "ASK", host, int(port)
