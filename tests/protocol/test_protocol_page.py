"""docs/protocol.md says what happens on the wire; what can be taken from a server is taken from one, here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgpack
import pytest
import redis

from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import OWN_NAMES, QueueKeys
from echomq_plugin.lua_files import lua_script
from echomq_plugin.options import LockOptions
from echomq_plugin.renewal import Renewal
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable
from echomq_plugin.tracking import TrackedLocks
from protocol.monitor import Asked, Monitor

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
UPDATE = "ECHOMQ_UPDATE_DOCS"

OPTIONS = LockOptions()


class Worker:
    """A worker's tracked locks, and passes over them at times of our own."""

    def __init__(self, server: EmbeddedServer, client: redis.Redis) -> None:
        self._server = server
        self._client = client
        self._now = 0
        self.table = LockTable(TrackedLocks(lock_duration=OPTIONS.lock_duration, threshold=OPTIONS.interval))
        self._renewal = Renewal(
            self.table,
            Scripts(Connections(server.url, call_limit_ms=20_000)),
            prefix="emq",
            batch_size=OPTIONS.batch_size,
            now_ms=lambda: self._now,
            outbox=lambda report: None,
        )

    def hold(self, queue: str, job_id: str, token: str) -> None:
        self._client.set(QueueKeys("emq", queue).lock(job_id), token, px=OPTIONS.lock_duration)
        self.table.tracked.track(queue, job_id, token, now=self._now)

    def pass_(self) -> list[Asked]:
        """Make the pass of the next tick, and return all that the server was asked."""
        self._now += OPTIONS.interval + 1
        with Monitor(self._server.url) as monitor:
            assert self._renewal.run() == []
            self._client.echo("the pass has ended")
            return monitor.until(b"the pass has ended")


@pytest.fixture
def worker(server: EmbeddedServer, client: redis.Redis) -> Worker:
    """A worker whose connection is open, and whose script the server knows."""
    client.ping()
    worker = Worker(server, client)
    worker.hold("mail", "0", "token-0")
    worker.pass_()
    worker.table.tracked.untrack("mail", "0")
    return worker


def written(asked: list[Asked]) -> str:
    """Write commands as the page shows them: packed lists unpacked, the script by its name."""
    script = lua_script("extendLocks-1")
    lines = []
    for words, by_script in asked:
        shown = []
        for word in words:
            if word == script.sha.encode():
                shown.append("<extendLocks-1>")
            elif word[:1] and 0x90 <= word[0] <= 0x9F:
                shown.append("msgpack" + str(msgpack.unpackb(word)).replace("'", '"'))
            else:
                shown.append(word.decode())
        lines.append(("    " if by_script else "") + " ".join(shown))
    return "".join(line + "\n" for line in lines)


def of_three_jobs(worker: Worker, client: redis.Redis) -> None:
    for number in "123":
        worker.hold("mail", number, f"token-{number}")


def of_two_queues(worker: Worker, client: redis.Redis) -> None:
    worker.hold("mail", "1", "token-1")
    worker.hold("video", "7", "token-7")


def with_a_lock_that_was_taken(worker: Worker, client: redis.Redis) -> None:
    of_three_jobs(worker, client)
    client.set("emq:mail:2:lock", "token of another run")


@pytest.mark.parametrize(
    "prepare", [of_three_jobs, of_two_queues, with_a_lock_that_was_taken], ids=lambda one: one.__name__
)
def test_the_page_lists_the_commands_that_one_renewal_issues(worker: Worker, client: redis.Redis, prepare) -> None:  # type: ignore[no-untyped-def]
    prepare(worker, client)

    commands = written(worker.pass_())

    assert_page_has(f"renewal {prepare.__name__}", commands)


def test_the_page_shows_when_a_lock_is_due() -> None:
    locks = TrackedLocks(lock_duration=OPTIONS.lock_duration, threshold=OPTIONS.interval)
    lines = []
    for now in (0, 2_000, 7_501, 15_002, 22_503, 30_004):
        lock = locks.get("mail", "42")
        if now == 2_000:
            locks.track("mail", "42", "token", now=now)
            what, left = "the lock is taken", OPTIONS.lock_duration
        elif lock is None:
            lines.append("     0 ms  a tick")
            continue
        elif locks.due(now):
            what, left = f"a tick; {now - lock.renewed_at} ms old, due: renewed", OPTIONS.lock_duration
            locks.settle([lock], (), now)
        else:
            what, left = f"a tick; {now - lock.renewed_at} ms old, not due", lock.renewed_at + 30_000 - now
        lines.append(f"{now:>6} ms  {what:<40} {left:>6} ms to live")

    assert_page_has("timeline", "".join(line + "\n" for line in lines))


def assert_page_has(name: str, text: str) -> None:
    """Compare a block of the page with what it must be, or write it."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(rf"(<!-- {name} -->\n```text\n)(.*?)(```\n)", re.DOTALL)
    found = block.search(page)
    assert found is not None, f"docs/protocol.md has no block for {name}"
    if found[2] != text and os.environ.get(UPDATE) == "1":
        PAGE.write_text(block.sub(lambda match: match[1] + text + match[3], page), encoding="utf-8")
        return
    assert found[2] == text, f"run this test with {UPDATE}=1 to write the block anew into docs/protocol.md"


def test_a_renewal_is_one_call_however_many_jobs_it_renews(worker: Worker, client: redis.Redis) -> None:
    for number in range(500):
        worker.hold("mail", str(number), f"token-{number}")

    asked = worker.pass_()

    assert [words[0] for words, by_script in asked if not by_script] == [b"EVALSHA"]
    assert sum(words[0] == b"SET" for words, _ in asked) == 500


def test_the_page_names_every_key_and_the_numbers_in_force() -> None:
    page = PAGE.read_text(encoding="utf-8")

    for name in OWN_NAMES:
        assert f"`…:{name}`" in page
    for number in (OPTIONS.lock_duration, OPTIONS.renew_time, OPTIONS.interval, OPTIONS.batch_size):
        assert f"{number:,}".replace(",", " ") in page
