"""
Releases: gives back the locks whose release has got no answer yet, until it has.

No greenlet, thread or timer of its own, as with Renewal. A failed call moves nothing.
"""

from __future__ import annotations

from collections import defaultdict

from echomq_plugin.errors import RedisCallError
from echomq_plugin.failures import Failure, failure_of
from echomq_plugin.keys import QueueKeys
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable, PendingRelease
from echomq_plugin.wire import MOST_IDS_A_CALL, chunks


class Releases:
    """
    Repeats what waits in the table.

    Args:
        table: the tracked locks, and the releases that wait.
        scripts: the wire.
        prefix: the first part of every key.

    """

    def __init__(self, table: LockTable, scripts: Scripts, *, prefix: str) -> None:
        self._table = table
        self._scripts = scripts
        self._prefix = prefix

    def run(self) -> list[Failure]:
        """
        Repeat each release. Called by the renewal greenlet; switches greenlets at every call to Redis.

        Returns:
            the releases that got no answer this time either.

        """
        with self._table.lock:
            pending = list(self._table.releases.values())
        failures: list[Failure] = []
        for some in chunks(pending, MOST_IDS_A_CALL):
            try:
                answers = self._scripts.release_many(
                    [
                        (
                            QueueKeys(self._prefix, release.queue),
                            release.job_id,
                            release.token,
                            "1" if release.keep_entry else "2" if release.undecided else "0",
                            release.keep_count,
                        )
                        for release in some
                    ]
                )
            except Exception as error:
                # One report for each queue: after an outage there may be as many of these as there were jobs.
                by_queue: defaultdict[str, list[PendingRelease]] = defaultdict(list)
                for release in some:
                    by_queue[release.queue].append(release)
                return [*failures, *(failure_of(queue, group, error) for queue, group in by_queue.items())]
            for release, answer in zip(some, answers, strict=True):
                trouble = answer if isinstance(answer, RedisCallError) else self._bring_back(release, answer)
                if trouble is not None:
                    failures.append(failure_of(release.queue, [release], trouble))
                else:
                    self._table.settle_release(release)
        return failures

    def _bring_back(self, release: PendingRelease, answer: str) -> Exception | None:
        """Write the entry of an interrupted job again if the server has forgotten it. Switches greenlets."""
        if answer != "gone" or not release.keep_entry or release.entry is None:
            return None
        job = (release.job_id, release.token, release.entry, release.fence)
        try:
            self._scripts.restore_entries(QueueKeys(self._prefix, release.queue), [job])
        except Exception as error:
            return error
        return None
