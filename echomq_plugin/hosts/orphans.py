"""
OrphanWatch: items that were taken by a worker that died, or was cut off, before it could start them.

Such an item has neither lock nor entry, so the sweep knows nothing of it. One that was seen so in two passes in a row
is put back. A live worker takes a lock within one call limit of taking the item, far sooner than a second pass comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from echomq_plugin.hosts.reliable_list import ReliableList
from echomq_plugin.keys import QueueKeys
from echomq_plugin.scripts import Scripts


class OrphanWatch:
    """
    Looks through the taken items of one list.

    Args:
        items: the list.
        scripts: asks for locks and entries.
        keys: the queue's keys.
        identify: gives an item's job id; must not raise.

    """

    def __init__(
        self, items: ReliableList, scripts: Scripts, keys: QueueKeys, identify: Callable[[bytes], str]
    ) -> None:
        self._items = items
        self._scripts = scripts
        self._keys = keys
        self._identify = identify
        self._seen: frozenset[bytes] = frozenset()

    def look(self, in_hand: Callable[[], Collection[bytes]]) -> int:
        """
        Make one pass and return how many items went back. Switches greenlets.

        Args:
            in_hand: gives the items that this process has taken and knows of.

        Raises:
            RedisCallError: there was no answer; the passes begin anew.

        """
        seen, self._seen = self._seen, frozenset()
        taken = self._items.taken()
        mine = in_hand()
        items = [item for item in dict.fromkeys(taken) if item not in mine]
        ids = [self._identify(item) for item in items]
        owners = self._scripts.look_up(self._keys, ids)
        ownerless = {
            item: job_id
            for item, job_id, owner in zip(items, ids, owners, strict=True)
            if owner.lock_token is None and owner.entry_token is None
        }
        twice = [(job_id, item) for item, job_id in ownerless.items() if item in seen]
        moved = self._items.put_back_orphans(self._keys, twice)
        self._seen = frozenset(ownerless)
        return moved
