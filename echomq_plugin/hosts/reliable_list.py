"""
ReliableList: a Redis list whose taken items wait in a second list until they are acknowledged.

Producers push on the left (``LPUSH list item``); items are taken from the right. Of two items with the same bytes each
is as good as the other, so none of these calls says which one it moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import gevent
from gevent import monkey
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, ResponseError

from echomq_plugin.connections import Client, Connections
from echomq_plugin.errors import OptionError, RedisCallError, ServerUnsuitableError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.sockets import GeventConnection, GeventUnixConnection, connection_class

LONGEST_TAKE_MS: Final = 1_000
"""How long one call waits on the server for an item, in ms: so long may a shutdown take to be noticed."""

_POLL_S: Final = 0.05


class ReliableList:
    """
    One list. All calls raise RedisCallError where there is no answer, and switch greenlets.

    Args:
        connections: where the list is.
        key: its key; the taken items are in ``<key>:processing``, the failed ones in ``<key>:failed``.

    Raises:
        OptionError: the key is not text, or empty.

    """

    def __init__(self, connections: Connections, key: str) -> None:
        if not isinstance(key, str) or not key:
            raise OptionError("list_key", key, "must be the key of a list, as text")
        self.key = key
        self.taken_key = f"{key}:processing"
        self.failed_key = f"{key}:failed"
        self._connections = connections
        self._scripts = ListScripts(connections)
        # redis-py limits each read by the call limit of the connection, so the server must answer well before that.
        self._take_ms = min(LONGEST_TAKE_MS, connections.call_limit_ms // 2)

    def take(self) -> bytes | None:
        """
        Take the next item; None when none came within a second.

        Raises:
            ServerUnsuitableError: the server does not know the command, or this user may not use it.

        """
        # A wait on the server would hold up the whole hub where sockets do not wait through it: poll there.
        if not _waits_on_hub(self._connections):
            item = self._moved("LMOVE")
            if item is None:
                gevent.sleep(_POLL_S)
            return item
        return self._moved("BLMOVE", self._take_ms / 1000)

    def _moved(self, command: str, *wait_s: float) -> bytes | None:
        def ask(client: Client) -> bytes | None:
            item = client.execute_command(command, self.key, self.taken_key, "RIGHT", "LEFT", *wait_s)
            return None if item is None else bytes(item)

        limit_ms = self._connections.call_limit_ms + self._take_ms
        try:
            return self._connections.call("take an item", ask, limit_ms=limit_ms)
        except RedisCallError as error:
            cause = error.__cause__
            if isinstance(cause, NoPermissionError):
                raise ServerUnsuitableError(
                    f"this user may not take items from list {self.key!r} ({cause})", f"grant it {self._permissions()}"
                ) from error
            if isinstance(cause, ResponseError) and "unknown command" in str(cause).lower():
                raise ServerUnsuitableError(f"the server has no {command}", "use Redis 6.2 or newer") from error
            raise

    def _permissions(self) -> str:
        return f"+blmove +lmove +lrange +lrem ~{self.key} ~{self.taken_key} ~{self.failed_key}"

    def acknowledge(self, item: bytes) -> None:
        """Forget a taken item: its job is done. Again: no effect, unless another item has the same bytes."""
        self._connections.call(
            "acknowledge an item", lambda client: client.execute_command("LREM", self.taken_key, 1, item)
        )

    def put_back(self, item: bytes, *, run_next: bool) -> bool:
        """Put a taken item back, to be taken next or behind all that waits. False: it was no longer taken."""
        return self._scripts.put_back(self.taken_key, self.key, item, run_next=run_next)

    def fail(self, item: bytes) -> bool:
        """Move a taken item to the failed ones. False: it was no longer taken."""
        return self._scripts.put_back(self.taken_key, self.failed_key, item, run_next=False)

    def taken(self) -> list[bytes]:
        """Return all taken items, of all workers: at most as many as there are slots and parking places."""
        items: list[bytes] = self._connections.call(
            "list taken items", lambda client: client.execute_command("LRANGE", self.taken_key, 0, -1)
        )
        return items

    def put_back_orphans(self, keys: QueueKeys, orphans: Sequence[tuple[str, bytes]]) -> int:
        """Put back those (job id, item) pairs that still have neither lock nor entry; return how many."""
        return self._scripts.put_back_orphans(keys, self.taken_key, self.key, orphans)

    def check(self, keys: QueueKeys) -> None:
        """
        Check that one script can reach the list and the queue's keys. No I/O.

        Raises:
            ServerUnsuitableError: on this cluster it cannot.

        """
        if not self._connections.is_cluster:
            return
        names = (self.key, self.taken_key, self.failed_key, keys.held)
        if len({key_slot(name.encode()) for name in names}) > 1:
            raise ServerUnsuitableError(
                f"list {self.key!r} and the locks of queue {keys.queue!r} are in different slots of the cluster",
                "give list and queue the same hash tag: list_key='{mail}', queue='{mail}'",
            )


def _waits_on_hub(connections: Connections) -> bool:
    """Tell whether other greenlets run while a call waits for its answer."""
    if monkey.is_module_patched("socket") and monkey.is_module_patched("ssl"):
        return connections.server.original_class.__module__.startswith("redis.")
    if connections.is_cluster:
        return False
    chosen = connection_class(connections.server.original_class, on_hub=True)
    return chosen is not None and issubclass(chosen, GeventConnection | GeventUnixConnection)
