"""Generated states for the script that all runtimes share: what is in Redis, and what the script is called with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import msgpack

LOCK_DURATIONS: tuple[object, ...] = (2_000, 30_000, 86_400_000, "45000")
BAD_LOCK_DURATIONS: tuple[object, ...] = (0, -1, "soon", "1500.5", "")
BATCHES = (0, 1, 2, 3, 5, 8, 13)
LARGE_BATCH = 1_000
LARGE_EVERY = 500

TEXTS = (
    "7", "0", "-1", "007", "9007199254740993", "0:12345", "job", "Job", "jöb-☃", "\U0001f680", "e\u0301", "\u00e9",
    "", " ", "1e5", "0x10", "two words",
    "tab\there", "line\nbreak", "nul\x00in it", "\x7f", "*", "?", "[ab]", "{tag}", "%3A", "a:b:c",
    "lock", "a:lock", "stalled", "held", "wait", "nil", "false", "true", "null", "__proto__", "constructor",
    "repeat:0a1b2c:1700000000000", "'", '"', "\\", "$(id)", "\ufeffbom", "\u202eright", "\ud7ff", "x" * 300,
    "y" * 2_000,
)  # fmt: skip

# What no runtime of ours sends; a script that met it should still do what its peer does.
RAW: tuple[object, ...] = (
    5, -5, 0, 2**31, 2**53, 10**14, 10**15, 1.0, 0.5, 1e300, True, False, None, b"\xff\xfe", b"plain bin", [], ["a"],
    {"a": "b"}, msgpack.ExtType(5, b"ext"),
)  # fmt: skip

# No list of text at all: nothing, an unfinished list, a list twice over, a map, text, no msgpack.
NO_LISTS = (b"", b"\x92\xa17", b"\x91\xa17\x91\xa18", b"\x81\xa1a\xa1b", b"\xa17", b"\xc1", b"\xc0")


@dataclass(frozen=True)
class State:
    """
    One call, and the keys it meets.

    Attributes:
        base: the base key; no two states share one, so that all live in one database side by side.
        commands: what fills the keys.
        arguments: KEYS and ARGV of the call.
        size: how many ids are in the batch.
        whole: nothing in the batch ends the script early, or cuts a list short.

    """

    base: str
    commands: list[tuple[Any, ...]]
    arguments: tuple[Any, ...]
    size: int
    whole: bool


def generated_state(random_: random.Random, number: int, now_ms: int) -> State:
    """
    Make one state.

    Args:
        random_: the seeded source.
        number: makes the base key unique; every 500th state has a batch of 1 000.
        now_ms: the server's time, from which absolute ends are counted, in ms.

    """
    base = f"{random_.choice(('emq', 'bull', '{emq}'))}:{random_.choice(('mail', 'jöb ☃', '{q}', 'a.b'))}{number}:"
    size = LARGE_BATCH if number % LARGE_EVERY == 0 else random_.choice(BATCHES)
    ids: list[object] = [_id(random_, at) for at in range(size)]
    tokens: list[object] = [_token(random_) for _ in ids]
    # One or two odd items a state, however large it is: the script ends at some of them, and what is behind them in the
    # batch would never be looked at.
    for words in (ids, tokens):
        if words and random_.random() < 0.1:
            for _ in range(random_.randint(1, 2)):
                words[random_.randrange(size)] = random_.choice(RAW)
    if size > 1 and random_.random() < 0.1:
        ids[-1] = ids[0]  # the same job twice in one batch
        if random_.random() < 0.5:
            tokens[-1] = tokens[0]
    commands: list[tuple[Any, ...]] = []
    for job_id, token in zip(ids, tokens, strict=True):
        commands += _lock(random_, _key(base, job_id), token, now_ms)
    if random_.random() < 0.04 and (key := _key(base, random_.choice(ids or [None]))):
        commands += [("DEL", key), ("HSET", key, "a", "hash")]  # one a state: the script ends at it, too
    commands += _stalled(random_, base + "stalled", ids)
    if random_.random() < 0.05 and tokens:
        tokens = tokens[: random_.randrange(len(tokens))]  # fewer tokens than ids
    elif random_.random() < 0.05:
        tokens.append("a token without an id")
    duration = random_.choice(BAD_LOCK_DURATIONS if random_.random() < 0.02 else LOCK_DURATIONS)
    packed = [_packed(tokens), _packed(ids)]
    whole = all(isinstance(word, str) for word in ids + tokens)
    if random_.random() < 0.01:
        whole = False
        packed[random_.randrange(2)] = random_.choice(NO_LISTS)
    return State(base, commands, (base + "stalled", base, *packed, duration), size, whole)


def _packed(words: list[object]) -> bytes:
    packed: bytes = msgpack.packb(words, use_bin_type=True, unicode_errors="surrogatepass")
    return packed


def _id(random_: random.Random, at: int) -> str:
    text = random_.choice(TEXTS)
    return text if random_.random() < 0.3 else f"{text}{at}"


def _token(random_: random.Random) -> str:
    if random_.random() < 0.3:
        return random_.choice(TEXTS)
    return f"{random_.getrandbits(128):032x}:{random_.randrange(100)}"


def _key(base: str, job_id: object) -> str | None:
    """The lock key of an id as Lua writes it; None for what cannot be written."""
    if isinstance(job_id, str):
        return f"{base}{job_id}:lock"
    if isinstance(job_id, int) and not isinstance(job_id, bool) and abs(job_id) < 10**14:
        return f"{base}{job_id}:lock"
    return None


def _lock(random_: random.Random, key: str | None, token: object, now_ms: int) -> list[tuple[Any, ...]]:
    if key is None:
        return []
    own = token if isinstance(token, str | int) and not isinstance(token, bool) else "odd"
    holder = random_.choices(
        ("ours", "missing", "another's", "almost ours", "no text", "lasting", "long", "short", "expired", "empty"),
        weights=(50, 12, 12, 4, 2, 4, 3, 6, 6, 2),
    )[0]
    ends = now_ms + random_.randrange(100_000, 200_000)
    match holder:
        case "missing":
            return []
        case "another's":
            return [("SET", key, f"other {own}", "PXAT", ends)]
        case "almost ours":
            return [("SET", key, f"{own}\n", "PXAT", ends)]
        case "lasting":  # a lock without an end, as a hand or a bug may leave it
            return [("SET", key, own)]
        case "no text":
            return [("SET", key, b"\xff\x00\xfe", "PXAT", ends)]
        case "long":  # longer than any lock duration
            return [("SET", key, own, "PXAT", now_ms + 1_000 * 86_400_000)]
        case "short":  # shorter than some, and far enough from its end that no slow machine meets it
            return [("SET", key, own, "PXAT", now_ms + 60_000)]
        case "expired":
            # Its end has come when the script runs, but the server has not yet taken it away.
            return [("SET", key, own, "PXAT", now_ms + 1)]
        case "empty":
            return [("SET", key, "", "PXAT", ends)]
    return [("SET", key, own, "PXAT", ends)]


def _stalled(random_: random.Random, key: str, ids: list[object]) -> list[tuple[Any, ...]]:
    kind = random_.choices(("missing", "all", "some", "others", "no set"), weights=(40, 25, 20, 15, 0.5))[0]
    text_ids = [job_id for job_id in ids if isinstance(job_id, str | int) and not isinstance(job_id, bool)]
    match kind:
        case "all" if text_ids:
            return [("SADD", key, *text_ids)]
        case "some" if text_ids:
            return [("SADD", key, *random_.sample(text_ids, (len(text_ids) + 1) // 2))]
        case "others":
            return [("SADD", key, *(f"somebody else's {at}" for at in range(random_.choice((1, 2, LARGE_BATCH)))))]
        case "no set":
            return [("SET", key, "no set")]
    return []
