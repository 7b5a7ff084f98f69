"""RecordingPlugin: implements every notification hook and writes down what it is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pluggy

from echomq_plugin.events import LostLock, StalledJob
from echomq_plugin.native import pause

POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """
    One call of one hook.

    Attributes:
        hook: the hook's name.
        arguments: what it was called with, by name.

    """

    hook: str
    arguments: dict[str, Any] = field(default_factory=dict)


class RecordingPlugin:
    """
    A plugin for tests: ``pm.register(RecordingPlugin(pm))``.

    Args:
        pm: the plugin manager that it will be registered with; its project's marker is used.
        put_back: answers ``echomq_job_stalled``; by default nothing is put back (None).

    Attributes:
        calls: every call, oldest first.

    """

    def __init__(self, pm: pluggy.PluginManager, put_back: Callable[[StalledJob], bool | None] | None = None) -> None:
        self.calls: list[RecordedCall] = []
        marker = pluggy.HookimplMarker(pm.project_name)
        for function in _implementations(self._record, put_back):
            setattr(self, function.__name__, marker(function))

    # A plain method would be taken for a hook without a marker, so what follows keeps clear of the prefix.

    def of(self, hook: str) -> list[dict[str, Any]]:
        """Return the arguments of each call of a hook, oldest first."""
        return [call.arguments for call in list(self.calls) if call.hook == hook]

    @property
    def lost(self) -> list[LostLock]:
        """Every lock that was reported lost, oldest first."""
        return [lock for arguments in self.of("echomq_lock_lost") for lock in arguments["lost"]]

    @property
    def renewed_ids(self) -> list[str]:
        """The job ids of all renewals, oldest first; an id as often as it was renewed."""
        return [job_id for arguments in self.of("echomq_locks_renewed") for job_id in arguments["job_ids"]]

    @property
    def errors(self) -> list[BaseException]:
        """The errors of failed renewals and failed checks, oldest first."""
        hooks = ("echomq_renewal_failed", "echomq_check_failed")
        return [call.arguments["error"] for call in list(self.calls) if call.hook in hooks]

    def jobs(self, hook: str) -> list[StalledJob]:
        """Return the jobs of ``echomq_job_stalled``, ``echomq_job_recovered`` or ``echomq_job_abandoned``."""
        return [arguments["job"] for arguments in self.of(hook)]

    def wait_for(self, hook: str, count: int = 1, timeout_ms: int = 10_000) -> list[dict[str, Any]]:
        """
        Wait until a hook was called so often, and return the arguments of its calls. Switches greenlets.

        Raises:
            TimeoutError: it was not.

        """
        until = time.monotonic() + timeout_ms / 1000
        while len(self.of(hook)) < count:
            if time.monotonic() > until:
                seen = [call.hook for call in self.calls]
                raise TimeoutError(f"{hook} was not called {count} times within {timeout_ms} ms; called were: {seen}")
            pause(POLL_S)
        return self.of(hook)

    def clear(self) -> None:
        """Forget all calls."""
        self.calls.clear()

    def _record(self, hook: str, **arguments: Any) -> None:
        self.calls.append(RecordedCall(hook, arguments))


def _implementations(
    record: Callable[..., None], put_back: Callable[[StalledJob], bool | None] | None
) -> tuple[Callable[..., Any], ...]:
    def echomq_lock_lost(queue: str, lost: tuple[LostLock, ...]) -> None:
        record("echomq_lock_lost", queue=queue, lost=lost)

    def echomq_locks_renewed(queue: str, job_ids: tuple[str, ...]) -> None:
        record("echomq_locks_renewed", queue=queue, job_ids=job_ids)

    def echomq_renewal_failed(
        queue: str, job_ids: tuple[str, ...], error: BaseException, retry_in_ms: int, at_risk_in_ms: int
    ) -> None:
        record(
            "echomq_renewal_failed",
            queue=queue,
            job_ids=job_ids,
            error=error,
            retry_in_ms=retry_in_ms,
            at_risk_in_ms=at_risk_in_ms,
        )

    def echomq_check_failed(queue: str | None, error: BaseException, retry_in_ms: int) -> None:
        record("echomq_check_failed", queue=queue, error=error, retry_in_ms=retry_in_ms)

    def echomq_job_stalled(job: StalledJob) -> bool | None:
        record("echomq_job_stalled", job=job)
        return None if put_back is None else put_back(job)

    def echomq_job_recovered(job: StalledJob) -> None:
        record("echomq_job_recovered", job=job)

    def echomq_job_abandoned(job: StalledJob) -> None:
        record("echomq_job_abandoned", job=job)

    return (
        echomq_lock_lost,
        echomq_locks_renewed,
        echomq_renewal_failed,
        echomq_check_failed,
        echomq_job_stalled,
        echomq_job_recovered,
        echomq_job_abandoned,
    )
