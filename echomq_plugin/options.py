"""LockOptions: every number that can be set, checked once, at the door."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from echomq_plugin.errors import OptionError
from echomq_plugin.keys import DEFAULT_PREFIX, key_part

DEFAULT_CALL_LIMIT_MS = 2_000
ENVIRONMENT_PREFIX = "ECHOMQ_"

LARGEST = 10**12
"""The largest number that is taken; in ms, three decades. Redis refuses much larger ones, and that at each call."""

_POSITIVE = (
    "lock_duration",
    "lock_renew_time",
    "stalled_interval",
    "call_limit_ms",
    "hook_limit_ms",
    "denied_pause_ms",
    "batch_size",
    "max_hold_ms",
    "max_hold_grace_ms",
)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """
    How locks are taken, renewed and recovered. All durations are in ms.

    Attributes:
        lock_duration: how long a lock lives after a successful start or renewal (protocol: 30 000).
        lock_renew_time: the worst gap between two renewals; ticks come at half of it (protocol: half the duration).
        stalled_interval: the longest time from a lock's end to the recovery of its job (BullMQ: 30 000).
        max_stalled_count: how many times a job is put back before it is given up (BullMQ: 1).
        prefix: the first part of every key.
        call_limit_ms: the limit of one whole call to Redis, name resolution included. None: 2 000, or a third of
            what lies between renew time and duration where that is less.
        hook_limit_ms: the limit of one hook implementation.
        denied_pause_ms: the longest pause that a denied delivery is asked to make.
        batch_size: how many locks one call renews at the most, so that no call keeps Redis busy for long.
        max_hold_ms: after this long a job is cancelled, however alive. None: a hung job holds its lock for ever.
        max_hold_grace_ms: how long a cancelled job may take to end before its lock is no longer renewed.
            None: one lock duration.
        dedicated_hub: run renewal on a hub of its own, so that a busy hub of the app does not starve it.
        when_unreachable: ``"refuse"``, or ``"run"`` to let hosts run jobs unlocked while Redis does not answer.

    """

    lock_duration: int = 30_000
    lock_renew_time: int | None = None
    stalled_interval: int = 30_000
    max_stalled_count: int = 1
    prefix: str = DEFAULT_PREFIX
    call_limit_ms: int | None = None
    hook_limit_ms: int = 5_000
    denied_pause_ms: int = 1_000
    batch_size: int = 1_000
    max_hold_ms: int | None = None
    max_hold_grace_ms: int | None = None
    dedicated_hub: bool = True
    when_unreachable: Literal["refuse", "run"] = "refuse"

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is None and _may_be_none(name):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise OptionError(name, value, "must be a whole number" + (" of ms" if name != "batch_size" else ""))
            if value <= 0:
                raise OptionError(name, value, "must be greater than 0")
            if value > LARGEST:
                raise OptionError(name, value, f"must be at most {LARGEST}")
        count = self.max_stalled_count
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise OptionError("max_stalled_count", count, "must be a whole number, 0 or more")
        if self.when_unreachable not in ("refuse", "run"):
            raise OptionError("when_unreachable", self.when_unreachable, "must be 'refuse' or 'run'")
        if not isinstance(self.dedicated_hub, bool):
            raise OptionError("dedicated_hub", self.dedicated_hub, "must be True or False")
        object.__setattr__(self, "prefix", key_part("prefix", self.prefix))
        self._check_that_renewals_fit()

    def _check_that_renewals_fit(self) -> None:
        # DESIGN: the worst gap is a whole renew time plus the latency of the call before and of the call itself.
        if self.renew_time < 2:
            raise OptionError("lock_renew_time", self.renew_time, "must be 2 ms or more: ticks come at half of it")
        if self.renew_time + 2 * self.call_limit > self.lock_duration:
            raise OptionError(
                "lock_renew_time",
                self.renew_time,
                f"plus twice the call limit ({self.call_limit} ms) must fit into lock_duration={self.lock_duration}: "
                "renew sooner, or lock for longer",
            )
        if self.stalled_interval < 2:
            raise OptionError("stalled_interval", self.stalled_interval, "must be 2 ms or more")

    @property
    def renew_time(self) -> int:
        """The renew time in force, in ms."""
        return self.lock_duration // 2 if self.lock_renew_time is None else self.lock_renew_time

    @property
    def interval(self) -> int:
        """Time between two ticks, in ms, and the threshold past which a lock is due (protocol)."""
        return self.renew_time // 2

    @property
    def call_limit(self) -> int:
        """The call limit in force, in ms."""
        if self.call_limit_ms is not None:
            return self.call_limit_ms
        return max(1, min(DEFAULT_CALL_LIMIT_MS, (self.lock_duration - self.renew_time) // 3))

    @property
    def hold_grace(self) -> int:
        """The grace in force after ``max_hold_ms``, in ms."""
        return self.lock_duration if self.max_hold_grace_ms is None else self.max_hold_grace_ms

    @property
    def warnings(self) -> tuple[str, ...]:
        """
        What will do harm some day, with what to write instead; said once, at start.

        No refusal: after the server forgot a lock a job may be put back early, but no run believes any longer for it.
        And a longer ``lock_duration`` alone must not be an error of ``stalled_interval``.
        """
        if self.stalled_interval // 2 >= self.renew_time:
            return ()
        return (
            f"stalled_interval={self.stalled_interval} lets the sweep put a job back before its run can have been told "
            f"that its lock is gone: write stalled_interval={2 * self.renew_time} or more, or lock_renew_time="
            f"{max(2, self.stalled_interval // 2)} or less",
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> LockOptions:
        """
        Read options from ``ECHOMQ_*`` variables: ``ECHOMQ_LOCK_DURATION=60000`` sets ``lock_duration``.

        Args:
            environ: the variables; the process's own by default.
            overrides: options that win over the environment.

        Raises:
            OptionError: a variable's text is no value of its option.

        """
        variables = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for field in dataclasses.fields(cls):
            text = variables.get(ENVIRONMENT_PREFIX + field.name.upper())
            if field.name not in overrides and text is not None and text != "":
                values[field.name] = _parsed(field.name, text)
        return cls(**{**values, **overrides})  # type: ignore[arg-type]  # checked in __post_init__


def checked_options(options: object) -> LockOptions:
    """
    Return options that are such.

    Raises:
        OptionError: they are something else.

    """
    if not isinstance(options, LockOptions):
        raise OptionError("options", options, "must be LockOptions(…)")
    return options


def _may_be_none(name: str) -> bool:
    return name in ("lock_renew_time", "call_limit_ms", "max_hold_ms", "max_hold_grace_ms")


def _parsed(name: str, text: str) -> object:
    if name in ("prefix", "when_unreachable"):
        return text
    variable = ENVIRONMENT_PREFIX + name.upper()
    if name == "dedicated_hub":
        choices = {"1": True, "true": True, "yes": True, "on": True}
        choices |= {"0": False, "false": False, "no": False, "off": False}
        if text.lower() not in choices:
            raise OptionError(variable, text, "must be 1 or 0")
        return choices[text.lower()]
    try:
        return int(text)
    except ValueError:
        raise OptionError(variable, text, "must be a whole number") from None
