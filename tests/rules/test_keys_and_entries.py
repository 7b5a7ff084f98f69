"""Names of keys that no two jobs share, and entries that any version can read."""

from __future__ import annotations

from itertools import product

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_plugin.entries import EntryData
from echomq_plugin.errors import IdTypeError, InvalidIdError, InvalidNameError
from echomq_plugin.keys import QueueKeys, has_hash_tag, key_part, percent_encoded, queues_key, text_id

OWN = ["held", "held_data", "held_claim", "held_seen", "stalled_count", "held_check", "fence", "stalled"]
# Few letters, so that different jobs come near to sharing a key; now and then any text.
names = st.one_of(st.text("ab%3A", min_size=1, max_size=4), st.text(min_size=1).filter(lambda text: ":" not in text))
ids = st.one_of(st.text("ab:lock", min_size=1, max_size=6), st.text(min_size=1))


def test_the_keys_of_the_protocol_are_its_own() -> None:
    keys = QueueKeys("emq", "mail")

    assert keys.base == "emq:mail:"
    assert keys.lock("42") == "emq:mail:42:lock"
    assert keys.stalled == "emq:mail:stalled"


def test_our_own_keys_lie_beside_them() -> None:
    keys = QueueKeys("emq", "mail")

    assert [getattr(keys, name) for name in OWN] == [
        "emq:mail:held",
        "emq:mail:held-data",
        "emq:mail:held-claim",
        "emq:mail:held-seen",
        "emq:mail:stalled-count",
        "emq:mail:held-check",
        "emq:mail:fence",
        "emq:mail:stalled",
    ]
    assert queues_key("emq") == "emq:queues"


@given(names, names, ids, names, names, ids)
def test_two_different_jobs_never_share_a_lock(p1: str, q1: str, i1: str, p2: str, q2: str, i2: str) -> None:
    same = QueueKeys(p1, q1).lock(i1) == QueueKeys(p2, q2).lock(i2)

    assert same == ((p1, q1, i1) == (p2, q2, i2))


def test_a_colon_in_a_queue_is_refused_and_in_an_id_makes_another_key() -> None:
    # Row 51: queue "a:b" with job "c" against queue "a" with job "b:c".
    with pytest.raises(InvalidNameError, match="write it as '%3A'"):
        QueueKeys("emq", "a:b")

    assert QueueKeys("emq", percent_encoded("a:b")).lock("c") == "emq:a%3Ab:c:lock"
    assert QueueKeys("emq", "a").lock("b:c") == "emq:a:b:c:lock"


@given(names, ids)
def test_no_lock_is_one_of_a_queues_own_keys(queue: str, job_id: str) -> None:
    keys = QueueKeys("emq", queue)

    assert keys.lock(job_id) not in {getattr(keys, name) for name in OWN} | {queues_key("emq")}


@given(st.text(min_size=1), st.text(min_size=1))
def test_encoded_names_are_fit_for_keys_and_stay_apart(one: str, other: str) -> None:
    assert ":" not in percent_encoded(one)
    assert (percent_encoded(one) == percent_encoded(other)) == (one == other)


@pytest.mark.parametrize(
    ("name", "says"),
    [("", "must not be empty"), ("a:b", "%3A"), ("\udcff", "UTF-8"), (b"mail", "text"), (None, "text")],
)
@pytest.mark.parametrize("kind", ["queue", "prefix"])
def test_a_name_that_cannot_be_part_of_a_key_is_refused(kind: str, name: object, says: str) -> None:
    with pytest.raises(InvalidNameError, match=says) as caught:
        key_part(kind, name)

    assert (caught.value.kind, caught.value.name) == (kind, name)


@pytest.mark.parametrize("name", ["mail", "jöb ☃", "%3A", "a b\n", "{mail}", "0"])
def test_any_other_name_is_taken_as_it_is(name: str) -> None:
    assert key_part("queue", name) == name


@pytest.mark.parametrize(
    "value",
    [None, 1.0, True, [], (), bytearray(b"1"), memoryview(b"1"), object()],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["job_id", "token"])
def test_an_id_that_cannot_be_text_is_a_type_error_that_says_what_to_pass(kind: str, value: object) -> None:
    with pytest.raises(IdTypeError, match=f"{kind} .* pass text, an int or ASCII bytes") as caught:
        text_id(kind, value)

    assert isinstance(caught.value, TypeError)
    assert caught.value.value is value


@pytest.mark.parametrize(
    ("value", "says"), [("", "empty"), (b"", "empty"), (b"\xff", "decode bytes"), ("a\udcffb", "UTF-8")]
)
def test_an_id_of_the_right_type_that_cannot_be_used_is_a_value_error(value: object, says: str) -> None:
    with pytest.raises(InvalidIdError, match=says) as caught:
        text_id("job_id", value)

    assert isinstance(caught.value, ValueError)


def test_an_int_of_more_digits_than_python_writes_is_an_error_of_ours() -> None:
    with pytest.raises(InvalidIdError, match="write it as text"):
        text_id("job_id", 10**5_000)


@pytest.mark.parametrize(
    ("key", "tagged"),
    [("emq:mail:", False), ("{emq}:mail:", True), ("emq:{mail}:", True), ("emq:{}:", False), ("emq:}{:", False),
     ("emq:{:", False), ("{}{a}:", False)],
)  # fmt: skip
def test_a_hash_tag_is_what_a_cluster_takes_for_one(key: str, tagged: bool) -> None:
    assert has_hash_tag(key) is tagged


# -- entries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delivery", "payload"), list(product([None, "", "d1", "d☃"], [None, "", "text ☃", b"", b"\xff\x00bytes"]))
)
def test_an_entry_comes_back_as_it_was_written(delivery: str | None, payload: bytes | str | None) -> None:
    entry = EntryData("host:1", 1_700_000_000_000, delivery, payload)

    found = EntryData.unpack(entry.pack())

    assert found == entry
    assert type(found.payload) is type(payload)


@pytest.mark.parametrize(
    "data",
    [None, b"", b"\xc1", b"\x81", b"text", msgpack.packb([1]), msgpack.packb(None), msgpack.packb({}), b"\xff" * 40,
     msgpack.packb({1: 2}), msgpack.packb({"started_at": "soon"}), msgpack.packb({"worker": None, "started_at": None}),
     msgpack.packb({"payload": ["a", "list"], "delivery": 5}), msgpack.packb(b"\xff", use_bin_type=False)],
    ids=repr,
)  # fmt: skip
def test_what_is_unreadable_or_of_another_version_is_left_empty_and_raises_nothing(data: bytes | None) -> None:
    found = EntryData.unpack(data)

    assert isinstance(found.worker, str)
    assert isinstance(found.started_at, int)
    assert found.delivery is None
    assert found.payload is None


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_reading_an_entry_raise(data: bytes) -> None:
    found = EntryData.unpack(data)

    assert found.payload is None or isinstance(found.payload, bytes | str)


def test_fields_of_a_later_version_are_passed_over() -> None:
    data = msgpack.packb({"worker": "w", "started_at": 5, "delivery": "d", "payload": "p", "novelty": [1]})

    assert EntryData.unpack(data) == EntryData("w", 5, "d", "p")
