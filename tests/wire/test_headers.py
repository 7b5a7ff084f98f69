"""Row 27: what each script's header promises as KEYS and ARGV is what is sent, in that order."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from echomq_plugin.connections import Connections
from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.lua_files import lua_script
from echomq_plugin.scripts import Batch, Scripts
from echomq_plugin.sweep_scripts import COUNT_KEPT_MS, SweepScripts

LUA = Path(__file__).parents[2] / "lua"
# Not sent through the wire, and therefore run in test_declared_keys.py: the probe of a start, and what RQ's own
# connection is asked for.
SCRIPTS = sorted({path.stem for path in LUA.glob("*.lua")} - {"probeServer-1", "takeJobs-4"})
KEYS = QueueKeys("emq", "mail")
JOBS = [("J1", "T1", b"D1", 1), ("J2", "T2", b"D2", 2)]
PAIRS = [(job_id, token) for job_id, token, *_ in JOBS]
IDS = [job_id for job_id, *_ in JOBS]
PAUSE = 3_000

WHAT_KEYS_MEAN = {
    "lock of the job": KEYS.lock("J1"),
    "held": KEYS.held,
    "held-data": KEYS.held_data,
    "held-claim": KEYS.held_claim,
    "held-seen": KEYS.held_seen,
    "held-check": KEYS.held_check,
    "stalled-count": KEYS.stalled_count,
    "stalled set of the queue": KEYS.stalled,
    "fence": KEYS.fence,
    "taken items": "TAKEN",
    "where the item goes": "LIST",
    "where the items go": "LIST",
    "locks of the jobs": [KEYS.lock(job_id) for job_id in IDS],
}

WHAT_ARGUMENTS_MEAN = {
    "job id": "J1",
    "token": "T1",
    "lock duration": 111,
    "entry data": b"D1",
    "base key": "emq:mail:",
    "tokens": msgpack.packb(["T1", "T2"]),
    "job ids packed": msgpack.packb(IDS),
    "claim token": "CLAIM",
    "how long the claim lasts": 222,
    "how long the claims last from now": 222,
    "how long the counts are kept": COUNT_KEPT_MS,
    "how long a count is kept": COUNT_KEPT_MS,
    "worker": "WORKER",
    "time between two passes": PAUSE,
    "how long a pass that is due is left to workers that serve the queue": PAUSE // 2,
    '"1": this worker serves the queue': "1",
    '"1": the entry stays for the sweep': "1",
    '"1": the count stays': "0",
    '"1": the count goes too': "1",
    '"1": to the right end': "1",
    "item": b"ITEM",
    "job ids": IDS,
}

FOR_EACH_JOB = {
    "job id": IDS,
    "token": [token for _, token in PAIRS],
    "dead token": [token for _, token in PAIRS],
    "entry data": [job[2] for job in JOBS],
    "fence number of the job's start": [job[3] for job in JOBS],
    "item": [job[2] for job in JOBS],
}

CALLS: dict[str, tuple[type, Callable[[Any], object]]] = {
    "extendLocks-1": (Scripts, lambda wire: wire.extend_locks([Batch(KEYS, IDS, ["T1", "T2"])], 111)),
    "acquireLock-6": (Scripts, lambda wire: wire.acquire(KEYS, "J1", "T1", 111, b"D1")),
    "releaseLock-6": (Scripts, lambda wire: wire.release(KEYS, "J1", "T1", keep_entry=True, keep_count=False)),
    "renewLock-1": (Scripts, lambda wire: wire.renew_one(KEYS, "J1", "T1", 111)),
    "restoreEntries": (Scripts, lambda wire: wire.restore_entries(KEYS, JOBS)),
    "winCheck-1": (SweepScripts, lambda wire: wire.win_check(KEYS, "WORKER", PAUSE, serves=True)),
    "markLockless": (SweepScripts, lambda wire: wire.mark_lockless(KEYS, IDS)),
    "claimStalled": (SweepScripts, lambda wire: wire.claim(KEYS, "CLAIM", 222, PAIRS)),
    "keepClaims-1": (SweepScripts, lambda wire: wire.keep_claims(KEYS, "CLAIM", 222, IDS)),
    "dropEntries-5": (SweepScripts, lambda wire: wire.drop_entries(KEYS, "CLAIM", PAIRS, forget_count=True)),
    "returnClaims-2": (SweepScripts, lambda wire: wire.return_claims(KEYS, "CLAIM", PAIRS)),
    "pruneCounts-2": (SweepScripts, lambda wire: wire.prune_counts(KEYS, IDS)),
    "putBack-2": (ListScripts, lambda wire: wire.put_back("TAKEN", "LIST", b"ITEM", run_next=True)),
    "putBackOrphans": (
        ListScripts,
        lambda wire: wire.put_back_orphans(KEYS, "TAKEN", "LIST", [(job[0], job[2]) for job in JOBS]),
    ),
}


class _SentError(Exception):
    pass


class _Listener(Connections):
    """Takes the first command and answers nothing."""

    def __init__(self) -> None:
        super().__init__("redis://never-connected", call_limit_ms=1_000)
        self.words: tuple[Any, ...] = ()

    def call(self, operation: str, work: Callable[[Any], Any], *, limit_ms: int | None = None) -> Any:
        return work(self)

    def execute_command(self, *words: Any) -> Any:
        self.words = words
        raise _SentError


def _sent(name: str) -> tuple[list[Any], list[Any]]:
    wire_class, call = CALLS[name]
    listener = _Listener()
    with pytest.raises(_SentError):
        call(wire_class(listener))
    command, sha, key_count, *rest = listener.words
    assert (command, sha) == ("EVALSHA", lua_script(name).sha)
    return rest[:key_count], rest[key_count:]


def _header(name: str) -> str:
    body = lua_script(name).body
    assert body.startswith("--[[")
    return body[: body.index("]]")]


def _promised(name: str, word: str) -> list[tuple[int, bool, str]]:
    """Return (first index, whether it goes on, text) of each KEYS or ARGV line of a header, broken lines joined."""
    lines: list[tuple[int, bool, str]] = []
    ours = False
    for line in _header(name).splitlines():
        found = re.match(rf"  {word}(?:\[(\d+)(…?)\])? +(.+)", line)
        if found:
            first, more, text = found.groups()
            lines.append((int(first or 1), bool(more) or first is None, text))
            ours = True
        elif ours and re.match(r" {6,}", line):
            lines[-1] = (*lines[-1][:2], lines[-1][2] + " " + line.strip())
        else:
            ours = False
    return lines


def _name(text: str) -> str:
    return re.split(r" \(|,|: its | \. ", text)[0].strip()


def _expected_arguments(name: str) -> list[Any]:
    expected: list[Any] = []
    for first, more, text in _promised(name, "ARGV"):
        assert first == len(expected) + 1
        if text.startswith("for each job: "):
            columns = [FOR_EACH_JOB[_name(part)] for part in text.removeprefix("for each job: ").split(", ")]
            expected += [value for row in zip(*columns, strict=True) for value in row]
        elif more:
            expected += WHAT_ARGUMENTS_MEAN[_name(text)]
        else:
            packed = " packed" if "msgpack" in text and _name(text) == "job ids" else ""
            expected.append(WHAT_ARGUMENTS_MEAN[_name(text) + packed])
    return expected


def test_every_script_is_in_this_test() -> None:
    assert set(CALLS) == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_keys_are_sent_in_the_order_of_the_header(name: str) -> None:
    expected: list[str] = []
    for first, more, text in _promised(name, "KEYS"):
        assert first == len(expected) + 1
        meaning = WHAT_KEYS_MEAN[_name(text)]
        assert isinstance(meaning, list) == more
        expected += meaning if more else [meaning]

    assert _sent(name)[0] == expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_arguments_are_sent_in_the_order_of_the_header(name: str) -> None:
    assert _sent(name)[1] == _expected_arguments(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_number_in_a_scripts_name_is_the_number_of_its_keys(name: str) -> None:
    fixed = re.search(r"-(\d+)$", name)
    goes_on = any(more for _, more, _ in _promised(name, "KEYS"))

    assert (fixed is None) == goes_on
    if fixed is not None:
        assert int(fixed[1]) == len(_sent(name)[0])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_body_uses_no_more_keys_and_arguments_than_its_header_names(name: str) -> None:
    body = lua_script(name).body[len(_header(name)) :]
    for word, sent in zip(("KEYS", "ARGV"), _sent(name), strict=True):
        used = [int(index) for index in re.findall(rf"{word}\[(\d+)\]", body)]
        assert max(used, default=0) <= len(sent)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_what_the_reply_is(name: str) -> None:
    assert re.search(r"^  Reply +\S", _header(name), re.MULTILINE)
