"""The model of Redis is Redis: the same generated calls on both, with the same replies and the same keys after each."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack
import pytest
import redis

from echomq_plugin.keys import QueueKeys
from echomq_plugin.lua_files import lua_script

from .model_scripts import SCRIPTS
from .model_server import ModelServer, word

KEYS = QueueKeys("emq", "q")
JOBS = ("j0", "j1", "j2")
TOKENS = ("ta", "tb", "tc")
CLAIMS = ("ca", "cb")
LONG_MS = 10_000_000
HASHES = (KEYS.held, KEYS.held_data, KEYS.held_claim, KEYS.held_seen, KEYS.stalled_count)
CALLS_A_SEED = 60


class Both:
    """The model and a real server, side by side."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        client.flushall()
        self.now = 1_700_000_000_000
        self.model = ModelServer(lambda: self.now)

    def call(self, name: str, keys: tuple[str, ...], arguments: tuple[Any, ...]) -> None:
        seconds, micros = self.client.time()
        self.now = int(seconds) * 1000 + int(micros) // 1000
        expected = self.client.execute_command("EVAL", lua_script(name).body, len(keys), *keys, *arguments)
        found = SCRIPTS[name](self.model, keys, arguments)
        told = f"{name} {keys} {arguments}"
        assert _plain(found) == _plain(expected), told
        assert self._model_state() == self._real_state(), told

    def lose_lock(self, job_id: str) -> None:
        self.client.delete(KEYS.lock(job_id))
        self.model.delete(KEYS.lock(job_id))

    def _model_state(self) -> Any:
        locks = {key: value for key, (value, _) in self.model.strings.items()}
        hashes = {
            key: {field: _timeless(value) for field, value in self.model.hashes.get(key, {}).items()} for key in HASHES
        }
        return locks, hashes, {key: members for key, members in self.model.sets.items() if members}

    def _real_state(self) -> Any:
        locks, hashes, sets = {}, {key: {} for key in HASHES}, {}
        for raw in self.client.scan_iter():
            key = raw.decode()
            kind = self.client.type(key)
            if kind == b"string":
                locks[key] = word(self.client.get(key))
            elif kind == b"hash":
                hashes[key] = {word(field): _timeless(value) for field, value in self.client.hgetall(key).items()}
            else:
                sets[key] = {word(member) for member in self.client.smembers(key)}
        return locks, hashes, sets


def _plain(reply: Any) -> Any:
    """A reply with its bytes as text, and with what hangs on the exact ms left out."""
    if isinstance(reply, list | tuple):
        return [_plain(item) for item in reply]
    if isinstance(reply, int) and reply > 10_000:
        return "ms"
    return word(reply) if isinstance(reply, bytes | str) else reply


def _timeless(value: Any) -> str:
    """A hash's value without the time at its end: the two are asked one after the other."""
    first, _, last = word(value).rpartition(" ")
    return first if len(last) > 10 and last.isdigit() else word(value)


def _call(both: Both, dice: Random) -> None:
    job_id, token, claim = dice.choice(JOBS), dice.choice(TOKENS), dice.choice(CLAIMS)
    lock = KEYS.lock(job_id)
    some = dice.sample(JOBS, dice.randint(1, 3))
    pairs = tuple(each for job in some for each in (job, dice.choice(TOKENS)))
    locks = tuple(KEYS.lock(job) for job in some)
    job_keys = (lock, KEYS.held, KEYS.held_data, KEYS.held_claim, KEYS.held_seen)
    life = dice.choice((LONG_MS, -LONG_MS))
    calls: list[tuple[str, tuple[str, ...], tuple[Any, ...]]] = [
        ("acquireLock-6", (*job_keys, KEYS.fence), (job_id, token, LONG_MS, b"data-" + token.encode())),
        ("acquireLock-6", (*job_keys, KEYS.fence), (job_id, token, LONG_MS, b"data-" + token.encode())),
        ("releaseLock-6", (*job_keys, KEYS.stalled_count), (job_id, token, dice.choice("012"), dice.choice("01"))),
        ("renewLock-1", (lock,), (token, LONG_MS)),
        (
            "extendLocks-1",
            (KEYS.stalled,),
            (KEYS.base, msgpack.packb([dice.choice(TOKENS) for _ in some]), msgpack.packb(some), LONG_MS),
        ),
        (
            "restoreEntries",
            (KEYS.held, KEYS.held_data, KEYS.fence, *locks),
            tuple(each for job in some for each in (job, token, b"again", dice.choice((0, 1, 1_000)))),
        ),
        ("winCheck-1", (KEYS.held_check,), ("worker", LONG_MS, LONG_MS // 2, dice.choice("01"))),
        ("markLockless", (KEYS.held, KEYS.held_data, KEYS.held_seen, *locks), tuple(some)),
        ("markLockless", (KEYS.held, KEYS.held_data, KEYS.held_seen, *locks), tuple(some)),
        (
            "claimStalled",
            (KEYS.held, KEYS.held_data, KEYS.held_claim, KEYS.stalled_count, *locks),
            (claim, life, LONG_MS, *pairs),
        ),
        (
            "claimStalled",
            (KEYS.held, KEYS.held_data, KEYS.held_claim, KEYS.stalled_count, *locks),
            (claim, life, LONG_MS, *pairs),
        ),
        ("keepClaims-1", (KEYS.held_claim,), (claim, life, *some)),
        (
            "dropEntries-5",
            (KEYS.held, KEYS.held_data, KEYS.held_claim, KEYS.held_seen, KEYS.stalled_count),
            (claim, dice.choice("01"), *pairs),
        ),
        ("returnClaims-2", (KEYS.held_claim, KEYS.stalled_count), (claim, *pairs)),
        ("pruneCounts-2", (KEYS.held, KEYS.stalled_count), (dice.choice((LONG_MS, -LONG_MS)), *some)),
    ]
    both.call(*dice.choice(calls))


@pytest.mark.parametrize("seed", range(25))
def test_the_model_and_the_scripts_agree(client: redis.Redis, seed: int) -> None:
    dice = Random(seed)
    both = Both(client)
    for _ in range(CALLS_A_SEED):
        if dice.random() < 0.15:
            both.lose_lock(dice.choice(JOBS))
        _call(both, dice)


def test_the_model_knows_every_script_of_the_package() -> None:
    from echomq_plugin.scripts import Scripts
    from echomq_plugin.sweep_scripts import SweepScripts

    assert set(SCRIPTS) == {*Scripts.names, *SweepScripts.names}
