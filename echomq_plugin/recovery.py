"""Recovery: put the jobs of dead runs back through the host, at least once and not once for each checker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pluggy
import redis

from echomq_plugin.callers import Caller
from echomq_plugin.entries import EntryData
from echomq_plugin.errors import EchoMQError, HookTimeLimitError, NobodyPutBackError, RedisCallError
from echomq_plugin.events import CheckFailed, JobAbandoned, JobRecovered, JobsFoundDead, Report, StalledJob
from echomq_plugin.hook_calls import call_each
from echomq_plugin.keys import QueueKeys
from echomq_plugin.options import LockOptions
from echomq_plugin.sweep_scripts import Claimed, SweepScripts
from echomq_plugin.wire import chunks

MOST_CLAIMED: Final = 50
"""The most jobs claimed in one call: they are put back one by one while their claims last."""


class Recovery:
    """
    Claims, has the host put back, drops.

    Args:
        pm: whose hooks put jobs back.
        scripts: the wire.
        options: prefix, limits and ``max_stalled_count``.
        now_ms: the clock.
        outbox: takes reports.
        nobody_put_back: told the queue when no plugin took a job, so that another worker gets its turn.

    """

    def __init__(
        self,
        pm: pluggy.PluginManager,
        scripts: SweepScripts,
        *,
        options: LockOptions,
        now_ms: Callable[[], int],
        outbox: Callable[[Report], None],
        nobody_put_back: Callable[[str], None],
    ) -> None:
        self._pm = pm
        self._scripts = scripts
        self._options = options
        self._now_ms = now_ms
        self._outbox = outbox
        self._nobody_put_back = nobody_put_back
        # It outlives any hook: a claim that ran out while its hook ran would let another sweeper put back too.
        self._claim_ms = 2 * options.hook_limit_ms

    def recover(self, found: JobsFoundDead, caller: Caller) -> None:
        """Bring back what the sweep found. Runs in the recovery lane; switches greenlets."""
        keys = QueueKeys(self._options.prefix, found.queue)
        for chunk in chunks(found.dead, MOST_CLAIMED):
            try:
                self._recover_some(keys, chunk, caller)
            except EchoMQError as error:
                # Whatever is still claimed comes free by itself, and the next pass finds it again.
                self._report_failure(found.queue, error)

    def _recover_some(self, keys: QueueKeys, dead: list[tuple[str, str]], caller: Caller) -> None:
        claim_token = uuid.uuid4().hex
        kept_at = self._now_ms()
        waiting = self._scripts.claim(keys, claim_token, self._claim_ms, dead)

        def still_ours(jobs: list[Claimed]) -> list[Claimed]:
            """Renew the claims of these jobs if it is time, and leave out what is another sweeper's by now."""
            nonlocal kept_at
            if self._now_ms() - kept_at <= self._options.hook_limit_ms // 2:
                return jobs
            kept_at = self._now_ms()
            ids = [job.job_id for job in jobs]
            kept = set(self._scripts.keep_claims(keys, claim_token, self._claim_ms, ids))
            return [job for job in jobs if job.job_id in kept]

        while waiting := still_ours(waiting):
            claimed, *waiting = waiting

            def may_go_on(claimed: Claimed = claimed) -> bool:
                nonlocal waiting
                ours = still_ours([claimed, *waiting])
                waiting = [job for job in ours if job is not claimed]
                return len(ours) > len(waiting)

            self._recover_one(keys, claim_token, claimed, caller, may_go_on)

    def _recover_one(
        self, keys: QueueKeys, claim_token: str, claimed: Claimed, caller: Caller, may_go_on: Callable[[], bool]
    ) -> None:
        data = EntryData.unpack(claimed.entry_data)
        job = StalledJob(
            keys.queue, claimed.job_id, data.payload, data.delivery, claimed.stalled_count, worker=data.worker
        )
        dead = [(claimed.job_id, claimed.token)]
        if job.stalled_count > self._options.max_stalled_count:
            unanswered: Exception | None = None
            for _, error in self._call("echomq_job_abandoned", job, caller):
                if isinstance(error, RedisCallError | redis.RedisError):
                    unanswered = error
                if not may_go_on():
                    return
            if unanswered is not None:
                # The host may not have failed the job, and the entry is all that still knows of it.
                self._scripts.return_claims(keys, claim_token, dead)
                self._report_failure(keys.queue, unanswered)
                return
            self._scripts.drop_entries(keys, claim_token, dead, forget_count=True)
            self._outbox(JobAbandoned(job))
            return
        still_running = False
        for result, error in self._call("echomq_job_stalled", job, caller):
            still_running = still_running or isinstance(error, HookTimeLimitError)
            if result is True:
                self._scripts.drop_entries(keys, claim_token, dead, forget_count=False)
                self._outbox(JobRecovered(job))
                return
            # Each implementation may take its whole limit, and there may be many.
            if not may_go_on():
                return
        if not still_running:
            self._scripts.return_claims(keys, claim_token, dead)
        # Else that hook may yet put the job back: its claim is left to run out.
        self._nobody_put_back(keys.queue)
        self._report_failure(keys.queue, NobodyPutBackError(keys.queue, claimed.job_id))

    def _call(self, hook: str, job: StalledJob, caller: Caller) -> Iterator[tuple[Any, BaseException | None]]:
        return call_each(self._pm, hook, {"job": job}, caller, self._options.hook_limit_ms)

    def _report_failure(self, queue: str, error: Exception) -> None:
        self._outbox(CheckFailed(queue, error, self._options.stalled_interval // 2))
