"""LockOptions: the protocol's numbers, and a typed error at the door for what cannot work."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from echomq_plugin import EchoMQError, LockManager, LockOptions
from echomq_plugin.errors import InvalidNameError, OptionError


def test_the_defaults_are_the_protocols() -> None:
    options = LockOptions()

    assert (options.lock_duration, options.renew_time, options.interval) == (30_000, 15_000, 7_500)
    assert (options.stalled_interval, options.max_stalled_count, options.prefix) == (30_000, 1, "emq")
    assert options.call_limit == 2_000
    assert options.hold_grace == 30_000


@pytest.mark.parametrize(
    ("duration", "renew_time", "expected_renew_time", "interval"),
    [(30_000, None, 15_000, 7_500), (3_001, None, 1_500, 750), (60_000, 10_001, 10_001, 5_000), (12, 2, 2, 1)],
)
def test_the_renew_time_is_half_the_duration_and_the_interval_half_of_that_rounded_down(
    duration: int, renew_time: int | None, expected_renew_time: int, interval: int
) -> None:
    options = LockOptions(lock_duration=duration, lock_renew_time=renew_time)

    assert (options.renew_time, options.interval) == (expected_renew_time, interval)


@pytest.mark.parametrize("duration", [6, 100, 1_500, 3_000, 30_000, 3_600_000])
def test_the_default_call_limit_always_lets_two_calls_fit_between_renew_time_and_duration(duration: int) -> None:
    options = LockOptions(lock_duration=duration)

    assert options.renew_time + 2 * options.call_limit <= options.lock_duration
    assert 1 <= options.call_limit <= 2_000


DURATIONS = [
    "lock_duration", "lock_renew_time", "stalled_interval", "call_limit_ms", "hook_limit_ms", "denied_pause_ms",
    "batch_size", "max_hold_ms", "max_hold_grace_ms",
]  # fmt: skip
MAY_BE_NONE = {"lock_renew_time", "call_limit_ms", "max_hold_ms", "max_hold_grace_ms"}


@pytest.mark.parametrize("option", DURATIONS)
@pytest.mark.parametrize(
    "value", [0, -1, -(10**30), 10**30, 10**12 + 1, 1.5, 1e3, float("nan"), "1000", b"1", True, [1]], ids=repr
)
def test_a_duration_is_a_whole_number_above_zero(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"^{option}=") as caught:
        LockOptions(**{option: value})  # type: ignore[arg-type]

    assert (caught.value.option, caught.value.value) == (option, value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, EchoMQError)


@pytest.mark.parametrize("option", DURATIONS)
def test_none_means_the_default_where_there_is_one_and_is_an_error_elsewhere(option: str) -> None:
    if option in MAY_BE_NONE:
        assert LockOptions(**{option: None}) == LockOptions()
    else:
        with pytest.raises(OptionError, match=option):
            LockOptions(**{option: None})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "option", "says"),
    [
        ({"max_stalled_count": -1}, "max_stalled_count", "0 or more"),
        ({"max_stalled_count": 1.0}, "max_stalled_count", "whole number"),
        ({"max_stalled_count": True}, "max_stalled_count", "whole number"),
        ({"when_unreachable": "maybe"}, "when_unreachable", "'refuse' or 'run'"),
        ({"when_unreachable": None}, "when_unreachable", "'refuse' or 'run'"),
        ({"dedicated_hub": 1}, "dedicated_hub", "True or False"),
        ({"lock_duration": 1}, "lock_renew_time", "2 ms or more"),
        ({"lock_renew_time": 1}, "lock_renew_time", "2 ms or more"),
        ({"stalled_interval": 1}, "stalled_interval", "2 ms or more"),
        ({"lock_renew_time": 30_000}, "lock_renew_time", "renew sooner, or lock for longer"),
        ({"lock_renew_time": 40_000}, "lock_renew_time", "renew sooner, or lock for longer"),
        ({"lock_renew_time": 26_001, "call_limit_ms": 2_000}, "lock_renew_time", "call limit"),
        ({"call_limit_ms": 7_501}, "lock_renew_time", "must fit into lock_duration=30000"),
    ],
)
def test_what_cannot_work_is_refused_and_the_error_says_what_would(
    given: dict[str, Any], option: str, says: str
) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        LockOptions(**given)

    assert caught.value.option == option


def test_what_just_works_is_taken() -> None:
    assert LockOptions(lock_renew_time=26_000, call_limit_ms=2_000).interval == 13_000
    assert LockOptions(max_stalled_count=0).max_stalled_count == 0


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"lock_duration": 60_000, "stalled_interval": 60_000}, None),
        ({"stalled_interval": 10_000, "lock_renew_time": 5_000}, None),
        ({"stalled_interval": 29_998}, {"stalled_interval": 30_000}),
        ({"lock_duration": 60_000}, {"stalled_interval": 60_000}),
        ({"stalled_interval": 10_000}, {"lock_renew_time": 5_000}),
    ],
)
def test_a_sweep_that_outruns_renewal_is_warned_of_with_the_values_to_write(
    given: dict[str, int], wanted: dict[str, int] | None
) -> None:
    warnings = LockOptions(**given).warnings  # type: ignore[arg-type]
    if wanted is None:
        assert warnings == ()
    else:
        [(name, value)] = wanted.items()
        assert f"{name}={value} or" in warnings[0]
        assert LockOptions(**{**given, **wanted}).warnings == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "a:b", ":", None, 3, b"emq", "\udcff"])
def test_a_prefix_is_checked_too(prefix: object) -> None:
    with pytest.raises(InvalidNameError, match="prefix"):
        LockOptions(prefix=prefix)  # type: ignore[arg-type]


def test_a_manager_refuses_the_same_things_before_it_connects() -> None:
    with pytest.raises(OptionError):
        LockManager("redis://127.0.0.1:1", "mail", lock_duration=0)
    with pytest.raises(OptionError):
        LockManager("redis://127.0.0.1:1", "mail", lock_duration=30_000, lock_renew_time=30_000)
    with pytest.raises(InvalidNameError):
        LockManager("redis://127.0.0.1:1", "a:b")
    with pytest.raises(InvalidNameError):
        LockManager("redis://127.0.0.1:1", "mail", prefix="a:b")


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LockOptions().lock_duration = 1  # type: ignore[misc]


# -- the environment ---------------------------------------------------------------------------------------------------


def test_every_option_can_be_set_by_a_variable() -> None:
    wanted = LockOptions(
        lock_duration=60_000, lock_renew_time=20_000, stalled_interval=10_000, max_stalled_count=3, prefix="bull",
        call_limit_ms=1_000, hook_limit_ms=900, denied_pause_ms=800, batch_size=77, max_hold_ms=700_000,
        max_hold_grace_ms=60, dedicated_hub=False, when_unreachable="run",
    )  # fmt: skip
    environment = {
        f"ECHOMQ_{field.name.upper()}": str(getattr(wanted, field.name)) for field in dataclasses.fields(LockOptions)
    }

    assert LockOptions.from_env(environment) == wanted


def test_variables_that_are_empty_or_absent_change_nothing() -> None:
    assert LockOptions.from_env({"ECHOMQ_LOCK_DURATION": "", "ECHOMQ_OTHER": "3"}) == LockOptions()


def test_arguments_win_over_the_environment() -> None:
    for text in ("60000", "no number"):
        assert LockOptions.from_env({"ECHOMQ_LOCK_DURATION": text}, lock_duration=9_000).lock_duration == 9_000


def test_the_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_PREFIX", "from the environment")

    assert LockOptions.from_env().prefix == "from the environment"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        ("True", True),
        ("0", False),
        ("false", False),
        ("No", False),
        ("on", True),
        ("Off", False),
    ],
)
def test_switches_are_read_from_plain_words(text: str, value: bool) -> None:
    assert LockOptions.from_env({"ECHOMQ_DEDICATED_HUB": text}).dedicated_hub is value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ECHOMQ_LOCK_DURATION", "30s"),
        ("ECHOMQ_LOCK_DURATION", "1.5"),
        ("ECHOMQ_LOCK_DURATION", "0x10"),
        ("ECHOMQ_MAX_STALLED_COUNT", "one"),
        ("ECHOMQ_DEDICATED_HUB", "maybe"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(variable: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"{variable}='{text}'"):
        LockOptions.from_env({variable: text})
