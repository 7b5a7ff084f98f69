"""Our script and the peer's, called in the same states, do the same."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from echomq_plugin.lua_files import lua_script
from interop.generated_states import LARGE_BATCH, State, generated_state

CHUNK = 250
SEED = 20_250

# Everything in a database: key, type, value in a fixed order, and when it ends (ms since the epoch, -1: never).
SNAPSHOT = """
local found = {}
local keys = redis.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key)['ok']
  local value
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key) table.sort(value)
  else value = redis.call('HGETALL', key) end
  table.insert(found, {key, kind, value, redis.call('PEXPIRETIME', key)})
end
return found
"""


def peers_script(folder: Path) -> str:
    """Read the peer's script from where its package was installed; it includes no other file."""
    (path,) = folder.glob("extendLocks-1.lua")
    body = path.read_text(encoding="utf-8")
    assert "@include" not in body
    return body


@pytest.fixture
def database(client: redis.Redis) -> Iterator[redis.Redis]:
    """One connection, which goes back and forth between two empty databases and lets expired keys lie."""
    set_active_expire(client, "0")
    yield client
    set_active_expire(client, "1")


def set_active_expire(client: redis.Redis, value: str) -> None:
    """Let expired keys lie until they are met; a server that forbids it takes some away before, a state too."""
    with contextlib.suppress(redis.ResponseError):
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", value)


@pytest.mark.parametrize(("runtime", "count"), [("node", 10_000), ("python", 1_000)])
@pytest.mark.timeout(300)
def test_both_scripts_give_the_same_reply_and_leave_the_same_keys_in_every_state(
    request: pytest.FixtureRequest, database: redis.Redis, runtime: str, count: int
) -> None:
    """Same reply, same keys, same values; and each lock ends at the time of its own call plus the lock duration."""
    if runtime == "node":
        folder = request.getfixturevalue("node_modules") / "bullmq" / "dist" / "cjs" / "commands"
    else:
        folder = request.getfixturevalue("bullmq_python") / "commands"
    ours, theirs = lua_script("extendLocks-1").body, peers_script(folder)
    assert hashlib.sha1(ours.encode()).digest() != hashlib.sha1(theirs.encode()).digest(), "that would prove nothing"
    random_ = random.Random(f"{SEED} {runtime}")
    kinds = {"renewed": 0, "refused": 0, "error": 0, "large": 0}
    for first in range(0, count, CHUNK):
        states = [generated_state(random_, first + at, now_ms(database)) for at in range(min(CHUNK, count - first))]
        compare(database, states, ours, theirs, kinds)
    assert kinds["renewed"] > count
    assert kinds["refused"] > count / 2
    assert kinds["error"] > count / 500
    assert kinds["large"] >= count / 1_000


def now_ms(database: redis.Redis) -> int:
    """Return the server's time, in ms."""
    seconds, micros = database.time()
    return int(seconds) * 1000 + int(micros) // 1000


def compare(database: redis.Redis, states: list[State], ours: str, theirs: str, kinds: dict[str, int]) -> None:
    """Fill two databases alike, run one script in each, and compare all that can be seen."""
    for number in (0, 1):
        pipeline = database.pipeline(transaction=False)
        pipeline.execute_command("SELECT", number)
        pipeline.execute_command("FLUSHDB")
        for state in states:
            for command in state.commands:
                pipeline.execute_command(*command)
        # A batch may hold two locks of one key, and then a type may not fit: both databases refuse alike.
        pipeline.execute(raise_on_error=False)

    pipeline = database.pipeline(transaction=False)
    for state in states:
        for number, script in ((0, ours), (1, theirs)):
            pipeline.execute_command("SELECT", number)
            pipeline.execute_command("TIME")
            pipeline.execute_command("EVAL", script, 1, *state.arguments)
            pipeline.execute_command("TIME")
    for number in (0, 1):
        pipeline.execute_command("SELECT", number)
        pipeline.execute_command("EVAL", SNAPSHOT, 0)
    replies = pipeline.execute(raise_on_error=False)
    keys_of_ours, keys_of_theirs = replies[-3], replies[-1]
    calls = {}
    for at, state in enumerate(states):
        mine, peers = (replies[at * 8 + offset : at * 8 + offset + 4] for offset in (0, 4))
        assert spoken(mine[2]) == spoken(peers[2]), f"the replies differ in the state of {state.base}"
        calls[state.base.encode()] = (mine, peers)
        if isinstance(mine[2], Exception):
            kinds["error"] += 1
        else:
            kinds["refused"] += len(mine[2])
            kinds["renewed"] += max(0, state.size - len(mine[2]))
            # Only what ran to its end: behind an odd item that ends the script nothing is compared.
            kinds["large"] += state.size == LARGE_BATCH and state.whole

    without_ends = [[key[:3] for key in found] for found in (keys_of_ours, keys_of_theirs)]
    assert without_ends[0] == without_ends[1]
    for mine, peers in zip(keys_of_ours, keys_of_theirs, strict=True):
        if mine[3] != peers[3]:  # a renewed lock: it ends one lock duration after its own call
            call = next(calls[base] for base in bases_of(mine[0]) if base in calls)
            ends = end_of_call(call[0], mine[3]), end_of_call(call[1], peers[3])
            assert ends[0] == ends[1] is not None, (mine[0], ends)


def bases_of(key: bytes) -> list[bytes]:
    """Return all that may be the base of a key: what ends with its second colon, wherever that is."""
    return [key[: match.end()] for match in re.finditer(b":", key)]


def end_of_call(call: list[Any], end: int) -> int | None:
    """Return the lock duration of a lock's end, if the end is a whole duration after a moment within the call."""
    before, after = (int(seconds) * 1000 + int(micros) // 1000 for seconds, micros in (call[1], call[3]))
    for duration in (2_000, 30_000, 45_000, 86_400_000):
        if before - 1 <= end - duration <= after:
            return duration
    return None


def spoken(reply: object) -> object:
    """Return a reply; of an error only what does not name the script, its lines and its variables."""
    if not isinstance(reply, Exception):
        return reply
    return type(reply), re.sub(r"(local|field) '[^']*'|user_script:\d+|@\w+|\b[0-9a-f]{40}\b|:\d+", "", str(reply))
