"""
Reports: who is told what, and where.

Three lanes: *cancel* (stop the jobs whose locks are lost; first and alone), *recovery* (put dead runs' jobs back) and
*notices* (everybody's hooks; renewed notices may be dropped under pressure, losses never).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

import pluggy

from echomq_plugin.callers import Caller
from echomq_plugin.events import (
    CheckFailed,
    JobRecovered,
    JobsFoundDead,
    LocksLost,
    LocksRenewed,
    RenewalFailed,
    Report,
)
from echomq_plugin.hook_calls import call_each
from echomq_plugin.lanes import Lane

Side = Literal["auto", "native"]


class Reports:
    """
    The outbox of a plugin.

    Args:
        pm: whose hooks are told.
        cancel: stops the jobs of one report of losses.
        recover: brings back what one sweep found.
        hook_limit_ms: limit of one hook implementation, in ms.
        side: ``native`` where the host's hub cannot be relied on, as in RQ's forking workers.

    """

    def __init__(
        self,
        pm: pluggy.PluginManager,
        *,
        cancel: Callable[[LocksLost, Caller], None],
        recover: Callable[[JobsFoundDead, Caller], None],
        hook_limit_ms: int,
        side: Side = "auto",
    ) -> None:
        self._pm = pm
        self._cancel = cancel
        self._recover = recover
        self._hook_limit_ms = hook_limit_ms
        self._side = side
        self._lanes: dict[int, _Lanes] = {}

    def open(self) -> None:
        """Let the hub of the calling thread take reports, if it waits through gevent and the side allows it."""
        if self._side == "auto":
            for lane in self._lanes_of_this_process().all():
                lane.use_this_hub_if_any()

    def post(self, report: Report) -> None:
        """Take a report. Callable from any native thread; neither blocks nor raises."""
        lanes = self._lanes_of_this_process()
        if isinstance(report, LocksLost):
            lanes.cancel.post(report)  # and from there to the notices
        elif isinstance(report, JobsFoundDead):
            lanes.recovery.post(report)
        else:
            lanes.notices.post(report)

    def close(self) -> None:
        """Deliver what waits, within seconds, and let the threads end."""
        lanes = self._lanes.get(os.getpid())
        if lanes is None:
            return
        # In this order: what the first two find goes on to the notices, and through these same lanes.
        for lane in lanes.all():
            lane.finish()
        self._lanes.pop(os.getpid(), None)

    def _lanes_of_this_process(self) -> _Lanes:
        pid = os.getpid()
        lanes = self._lanes.get(pid)
        if lanes is None:
            lanes = self._lanes.setdefault(pid, _Lanes(self._cancel_and_notify, self._recover, self._notify))
        return lanes

    def _cancel_and_notify(self, report: LocksLost, caller: Caller) -> None:
        try:
            self._cancel(report, caller)
        finally:
            # Who is told of a loss may rely on it that the job has been stopped, as far as it can be.
            self._lanes_of_this_process().notices.post(report)

    def _notify(self, report: Report, caller: Caller) -> None:
        for hook, arguments in _hook_calls(report):
            for _ in call_each(self._pm, hook, arguments, caller, self._hook_limit_ms):
                pass


class _Lanes:
    def __init__(
        self,
        cancel: Callable[[LocksLost, Caller], None],
        recover: Callable[[JobsFoundDead, Caller], None],
        notify: Callable[[Report, Caller], None],
    ) -> None:
        self.cancel: Lane[LocksLost] = Lane(cancel)
        self.recovery: Lane[JobsFoundDead] = Lane(recover)
        self.notices: Lane[Report] = Lane(notify, droppable=lambda report: isinstance(report, LocksRenewed))

    def all(self) -> tuple[Lane[LocksLost], Lane[JobsFoundDead], Lane[Report]]:
        return self.cancel, self.recovery, self.notices


def _hook_calls(report: Report) -> list[tuple[str, dict[str, object]]]:
    if isinstance(report, LocksLost):
        return [("echomq_lock_lost", {"queue": report.queue, "lost": report.lost})]
    if isinstance(report, LocksRenewed):
        return [("echomq_locks_renewed", {"queue": report.queue, "job_ids": report.job_ids})]
    if isinstance(report, RenewalFailed):
        arguments: dict[str, object] = {
            "queue": report.queue,
            "job_ids": report.job_ids,
            "error": report.error,
            "retry_in_ms": report.retry_in_ms,
            "at_risk_in_ms": report.at_risk_in_ms,
        }
        return [("echomq_renewal_failed", arguments)]
    if isinstance(report, CheckFailed):
        arguments = {"queue": report.queue, "error": report.error, "retry_in_ms": report.retry_in_ms}
        return [("echomq_check_failed", arguments)]
    if isinstance(report, JobRecovered):
        return [("echomq_job_recovered", {"job": report.job})]
    # An abandoned job's hook has been called before its entry was dropped (recovery.py).
    return []
