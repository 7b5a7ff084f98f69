"""ListScripts: the calls of a reliable list, whose taken items wait in a second list until they are done."""

from __future__ import annotations

from collections.abc import Sequence

from echomq_plugin.keys import QueueKeys
from echomq_plugin.wire import MOST_IDS_A_CALL, Wire, chunks


class ListScripts(Wire):
    """The calls that put taken items back."""

    names = ("putBack-2", "putBackOrphans")

    def put_back(self, taken_key: str, list_key: str, item: bytes, *, run_next: bool) -> bool:
        """
        Move an item from the taken ones to a list, once. False: it was no longer taken.

        Args:
            taken_key: the list of taken items.
            list_key: where the item goes.
            item: the item.
            run_next: to the end that items are taken from; else behind all that waits.

        """
        arguments = (item, "1" if run_next else "0")
        return self.run("put an item back", "putBack-2", (taken_key, list_key), arguments, int) == 1

    def put_back_orphans(
        self, keys: QueueKeys, taken_key: str, list_key: str, items: Sequence[tuple[str, bytes]]
    ) -> int:
        """Put back taken (job id, item) pairs that have neither lock nor entry; return how many."""
        moved = 0
        for chunk in chunks(items, MOST_IDS_A_CALL):
            locks = tuple(keys.lock(job_id) for job_id, _ in chunk)
            arguments = tuple(word for pair in chunk for word in pair)
            moved += self.run(
                "put orphans back", "putBackOrphans", (taken_key, list_key, keys.held, *locks), arguments, int
            )
        return moved
