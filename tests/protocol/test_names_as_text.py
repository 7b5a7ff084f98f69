"""Ids, tokens, queues and prefixes reach Redis as the text that any other runtime reads."""

from __future__ import annotations

import enum

import pytest

from echomq_plugin.errors import EchoMQError, IdTypeError, InvalidIdError, InvalidNameError
from echomq_plugin.keys import QueueKeys, text_id
from echomq_plugin.options import LockOptions


class Name(str, enum.Enum):
    MAIL = "mail"


class Number(enum.IntEnum):
    SEVEN = 7


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


class LoudNumber(int):
    def __repr__(self) -> str:
        return "seven"

    __str__ = __repr__


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("42", "42"), (42, "42"), (-1, "-1"), (0, "0"), (10**15, "1000000000000000"), (2**64, str(2**64)),
        (b"42", "42"), (Name.MAIL, "mail"), (Number.SEVEN, "7"), (Loud("loud"), "loud"), (LoudNumber(7), "7"),
        ("nul\x00in it", "nul\x00in it"), ("\U0001f680", "\U0001f680"), (" ", " "),
    ],
    ids=repr,
)  # fmt: skip
def test_an_id_is_made_the_very_text_that_its_bytes_spell(given: object, text: str) -> None:
    made = text_id("job_id", given)

    assert type(made) is str
    assert made == text


@pytest.mark.parametrize(
    "given",
    [None, True, 1.5, ["42"], object(), bytearray(b"42"), memoryview(b"42")],
    ids=lambda given: type(given).__name__,
)
def test_an_id_of_a_type_that_runtimes_spell_differently_is_refused(given: object) -> None:
    with pytest.raises(IdTypeError):
        text_id("token", given)


@pytest.mark.parametrize("given", ["", b"", "\ud800", "a\udfffb", b"\xff", "jöb".encode()], ids=repr)
def test_an_id_that_has_no_text_another_runtime_can_read_is_refused(given: object) -> None:
    with pytest.raises(InvalidIdError):
        text_id("token", given)


def test_a_queue_and_a_prefix_that_are_members_of_an_enum_are_their_text() -> None:
    keys = QueueKeys(Loud("emq"), Name.MAIL)

    assert keys.lock("42") == "emq:mail:42:lock"
    assert (type(keys.queue), type(LockOptions(prefix=Name.MAIL).prefix)) == (str, str)


@pytest.mark.parametrize("name", ["", "a:b", "\ud800", None, 7, b"mail"], ids=repr)
def test_a_queue_or_a_prefix_that_cannot_be_part_of_a_key_is_refused(name: object) -> None:
    with pytest.raises(InvalidNameError):
        QueueKeys("emq", name)  # type: ignore[arg-type]
    with pytest.raises(EchoMQError):
        LockOptions(prefix=name)  # type: ignore[arg-type]
