"""The library's log: one logger, constant event names as messages, data in ``extra``."""

from __future__ import annotations

import logging
from typing import Any

from gevent import monkey
from pluggy import HookimplMarker

from echomq_plugin.callers import Caller
from echomq_plugin.events import LostLock, StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.native import hub_of_this_thread

logger = logging.getLogger("echomq_plugin")


def log_plugin(project_name: str) -> Any:
    """
    Return the plugin that logs what happens; block it by ``pm.set_blocked("echomq-log")``.

    Lost locks and abandoned jobs are errors, failed calls are warnings, recovered jobs are infos, ticks are debug.
    """

    def echomq_lock_lost(queue: str, lost: tuple[LostLock, ...]) -> None:
        for lock in lost:
            log_event(
                logging.ERROR,
                "lock lost",
                queue=queue,
                job_id=lock.job_id,
                reason=lock.reason,
                held_for_ms=lock.held_for_ms,
                hub_blocked_ms=lock.hub_blocked_ms,
            )

    def echomq_locks_renewed(queue: str, job_ids: tuple[str, ...]) -> None:
        log_event(logging.DEBUG, "locks renewed", queue=queue, count=len(job_ids))

    def echomq_renewal_failed(
        queue: str, job_ids: tuple[str, ...], error: BaseException, retry_in_ms: int, at_risk_in_ms: int
    ) -> None:
        log_event(
            logging.WARNING,
            "renewal failed",
            queue=queue,
            count=len(job_ids),
            error=error,
            retry_in_ms=retry_in_ms,
            at_risk_in_ms=at_risk_in_ms,
        )

    def echomq_check_failed(queue: str | None, error: BaseException, retry_in_ms: int) -> None:
        log_event(logging.WARNING, "check failed", queue=queue, error=error, retry_in_ms=retry_in_ms)

    def echomq_job_recovered(job: StalledJob) -> None:
        log_event(logging.INFO, "job recovered", queue=job.queue, job_id=job.job_id, stalled_count=job.stalled_count)

    def echomq_job_abandoned(job: StalledJob) -> None:
        log_event(logging.ERROR, "job abandoned", queue=job.queue, job_id=job.job_id, stalled_count=job.stalled_count)

    marker = HookimplMarker(project_name)
    functions = (
        echomq_lock_lost,
        echomq_locks_renewed,
        echomq_renewal_failed,
        echomq_check_failed,
        echomq_job_recovered,
        echomq_job_abandoned,
    )
    return HookNamespace(**{function.__name__: marker(function) for function in functions})


def log_hook_failure(plugin_name: str, hook: str, error: BaseException, caller: Caller, limit_ms: int) -> None:
    """
    Log that one implementation of a hook failed, with its plugin's name and its traceback.

    Through a caller, because handlers are host code too: one whose lock is held must not keep the next plugin waiting.
    """

    def log() -> None:
        logger.error(
            "hook failed: %s of plugin %r: %s: %s",
            hook,
            plugin_name,
            type(error).__name__,
            error,
            exc_info=error,
            extra={"echomq_event": "hook failed", "echomq_plugin_name": plugin_name, "echomq_hook": hook},
        )

    try:
        caller.call(log, limit_ms)
    except BaseException:  # a handler may raise anything, and the lane must go on
        pass  # there is nowhere left to say so


def log_warnings(event: str, warnings: tuple[str, ...]) -> None:
    """Warn at start, once for each, of what will do harm some day."""
    for advice in warnings:
        log_event(logging.WARNING, event, advice=advice)


def log_patching(dedicated_hub: bool) -> None:
    """Say so when a gevent app is not monkey-patched: its blocking calls hold up its hub, and all that runs there."""
    if hub_of_this_thread() is not None and not monkey.is_module_patched("socket"):
        level = logging.INFO if dedicated_hub else logging.WARNING
        log_event(level, "not monkey-patched", renewal="not affected" if dedicated_hub else "held up by blocking calls")


def log_event(level: int, event: str, *, trace: BaseException | None = None, **data: object) -> None:
    """Log one event, its data as words and as ``extra``; ``trace``: the error whose traceback is logged."""
    if logger.isEnabledFor(level):
        words = ", ".join(f"{name}={value!r}" for name, value in data.items())
        extra = {f"echomq_{name}": value for name, value in data.items()}
        logger.log(level, "%s: %s", event, words, exc_info=trace, extra={"echomq_event": event, **extra})
