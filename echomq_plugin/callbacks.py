"""Callbacks: the outbox of a LockManager that is used without the hook chain."""

from __future__ import annotations

import os
from collections.abc import Callable

from echomq_plugin.callers import Caller
from echomq_plugin.events import LocksLost, LocksRenewed, RenewalFailed, Report
from echomq_plugin.lanes import Lane
from echomq_plugin.log import log_hook_failure


class Callbacks:
    """
    Calls plain functions, one at a time, on the host's hub while that turns, else in a native thread.

    Args:
        on_lost: called with the list of job ids whose lock is lost.
        on_renewed: called with the list of renewed ids.
        on_error: called with the error of a failed call.
        limit_ms: limit of one call, in ms.

    """

    def __init__(
        self,
        on_lost: Callable[[list[str]], object] | None,
        on_renewed: Callable[[list[str]], object] | None,
        on_error: Callable[[BaseException], object] | None,
        limit_ms: int,
    ) -> None:
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        self._on_error = on_error
        self._limit_ms = limit_ms
        # One for each process: a child's reports never go through its parent's lane.
        self._lanes: dict[int, Lane[Report]] = {}

    def open(self) -> None:
        """Let the hub of the calling thread take the calls, if it waits through gevent."""
        self._lane().use_this_hub_if_any()

    def post(self, report: Report) -> None:
        """Take a report. Callable from any native thread; neither blocks nor raises."""
        if self._function_for(report) is not None:
            self._lane().post(report)

    def close(self) -> None:
        """Make the calls that wait, within seconds, and let the thread end."""
        lane = self._lanes.pop(os.getpid(), None)
        if lane is not None:
            lane.finish()

    def _lane(self) -> Lane[Report]:
        pid = os.getpid()
        lane = self._lanes.get(pid)
        if lane is None:
            new: Lane[Report] = Lane(self._deliver, droppable=lambda report: isinstance(report, LocksRenewed))
            lane = self._lanes.setdefault(pid, new)
        return lane

    def _function_for(self, report: Report) -> Callable[[], object] | None:
        if isinstance(report, LocksLost) and self._on_lost is not None:
            on_lost, lost_ids = self._on_lost, [lock.job_id for lock in report.lost]
            return lambda: on_lost(lost_ids)
        if isinstance(report, LocksRenewed) and self._on_renewed is not None:
            on_renewed, renewed_ids = self._on_renewed, list(report.job_ids)
            return lambda: on_renewed(renewed_ids)
        if isinstance(report, RenewalFailed) and self._on_error is not None:
            on_error, error = self._on_error, report.error
            return lambda: on_error(error)
        return None

    def _deliver(self, report: Report, caller: Caller) -> None:
        function = self._function_for(report)
        if function is None:
            return
        try:
            caller.call(function, self._limit_ms)
        except BaseException as error:  # a callback may raise anything, and none of it may pass
            log_hook_failure("callbacks", type(report).__name__, error, caller, self._limit_ms)
