"""The whole way of a renewal, from the timer to the callback, on every kind of server, in real time and short lives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import gevent
import pytest
import redis

from echomq_plugin import LockManager
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import QueueKeys
from echomq_plugin.native import pause, start_thread
from wire.renewals import DURATION, Bench
from wire.servers import Node
from wire.test_client_settings import ODD_IDS

SHORT, RENEW_TIME = 6_000, 750  # ticks are a twentieth of the protocol's, and calls have time on a busy machine


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, generously."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about within 30 s"
        pause(0.01)


class Worker:
    """A manager on short locks, and what it calls back."""

    def __init__(self, node: Node, source: object = None) -> None:
        self.node = node
        self.renewed: Counter[str] = Counter()
        self.lost: list[str] = []
        self.errors: list[BaseException] = []
        self.manager = LockManager(
            source or node.source,
            "mail",
            lock_duration=SHORT,
            lock_renew_time=RENEW_TIME,
            # A fake server is not made for a second native thread.
            dedicated_hub=node.kind != "fakeredis",
            on_lock_renewal_failed=self.lost.extend,
            on_locks_renewed=self.renewed.update,
            on_renewal_error=self.errors.append,
        )

    def hold(self, job_id: str, queue: str = "mail") -> None:
        self.node.client.set(QueueKeys("emq", queue).lock(job_id), "token", px=SHORT)
        self.manager.track_job(job_id, "token", queue=queue)

    def renewed_again(self, *job_ids: str, times: int = 2) -> None:
        before = Counter(self.renewed)
        until(
            lambda: all(self.renewed[i] >= before[i] + times for i in job_ids), f"renewal of {job_ids}, {self.errors}"
        )


@pytest.fixture
def worker(node: Node):
    worker = Worker(node)
    yield worker
    worker.manager.stop()


def test_locks_are_kept_and_losses_told_once(node: Node, worker: Worker) -> None:
    keys = QueueKeys("emq", "mail")
    odd = list(ODD_IDS.values())
    worker.manager.start()
    for job_id in odd:
        worker.hold(job_id)
    worker.hold("in another queue", "video")
    worker.hold("robbed")
    worker.hold("wiped")
    everything = [*odd, "in another queue", "robbed", "wiped"]
    worker.renewed_again(*everything, times=3)
    assert worker.manager.get_active_job_count() == len(everything)
    assert worker.lost == []
    assert all(0 < node.client.pttl(keys.lock(job_id)) <= SHORT for job_id in odd)

    node.client.set(keys.lock("robbed"), "another token")
    node.client.delete(keys.lock("wiped"))
    node.client.sadd(keys.stalled, odd[0])
    until(lambda: len(worker.lost) >= 2, "the losses")
    worker.renewed_again(*odd)

    assert sorted(worker.lost) == ["robbed", "wiped"]
    assert worker.errors == []
    assert node.client.get(keys.lock("robbed")) == b"another token"
    assert node.client.pttl(keys.lock("robbed")) == -1
    assert not node.client.exists(keys.lock("wiped"))
    assert not node.client.exists(keys.stalled)
    assert sorted(worker.manager.get_tracked_job_ids()) == sorted([*odd, "in another queue"])

    for job_id in odd:
        worker.manager.untrack_job(job_id)
    worker.manager.untrack_job("in another queue", queue="video")
    assert worker.manager.stop() is True


def test_a_stopped_manager_leaves_locks_to_run_out(node: Node, worker: Worker) -> None:
    worker.manager.start()
    worker.hold("42")
    worker.renewed_again("42", times=1)

    assert worker.manager.stop() is False

    assert node.client.get("emq:mail:42:lock") == b"token"
    left = node.client.pttl("emq:mail:42:lock")
    until(lambda: node.client.pttl("emq:mail:42:lock") < left - 2 * RENEW_TIME, "the lock's way to its end")


def test_a_manager_starts_again_after_a_stop(node: Node, worker: Worker) -> None:
    for _ in range(2):
        worker.manager.start()
        worker.manager.start()  # no effect
        worker.hold("42")
        worker.renewed_again("42", times=1)
        worker.manager.untrack_job("42")
        assert worker.manager.stop() is True


def test_the_time_to_live_is_reset_and_never_added_to(node: Node) -> None:
    # Row 60.
    bench = Bench(node)
    bench.hold(["42"])
    for _ in range(10):
        assert bench.tick() == []
        assert 0 < node.client.pttl("emq:mail:42:lock") <= DURATION


def test_a_pass_with_a_time_of_the_tests_own_settles_every_kind_of_lock(node: Node) -> None:
    keys = QueueKeys("emq", "mail")
    bench = Bench(node)
    bench.hold(["kept", "robbed", "wiped", "forgotten"], entry=b"entry")
    for job_id in ("kept", "robbed", "wiped"):
        node.client.hset(keys.held, job_id, f"token of {job_id}")
    node.client.set(keys.lock("robbed"), "another token")
    node.client.delete(keys.lock("wiped"), keys.lock("forgotten"))

    assert bench.tick() == []

    assert bench.renewed == [("mail", ("kept",))]
    assert sorted(bench.lost) == [
        ("mail", "forgotten", "missing"),
        ("mail", "robbed", "taken"),
        ("mail", "wiped", "missing"),
    ]
    # Only what the server had forgotten altogether is written again.
    assert node.client.hget(keys.held, "forgotten") == b"token of forgotten"
    assert node.client.hgetall(keys.held_data) == {b"forgotten": b"entry"}
    reports = len(bench.reports)
    bench.tick()
    assert [report.job_ids for report in bench.reports[reports:]] == [("kept",)]  # type: ignore[union-attr]


class FlakyConnection(redis.Connection):
    """Raises each of its errors once, instead of sending a script."""

    errors: ClassVar[list[BaseException]] = []

    def send_packed_command(self, command: object, check_health: bool = True) -> None:
        if self.errors and b"EVALSHA" in b"".join(command):  # type: ignore[call-overload]
            raise self.errors.pop(0)
        super().send_packed_command(command, check_health)


ERRORS = [
    redis.ConnectionError("gone"),
    redis.ResponseError("BUSY"),
    redis.TimeoutError("slow"),
    OSError("no route"),
    ValueError("nonsense"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RuntimeError("a bug of the driver"),
    gevent.Timeout(),
    gevent.Timeout(77),
]


def test_after_any_error_of_the_client_one_report_comes_and_all_are_renewed_at_the_next_try(
    running: Callable[[str], EmbeddedServer],
) -> None:
    # Row 6.
    server = running("redis-server")
    pool = redis.ConnectionPool(connection_class=FlakyConnection, host="127.0.0.1", port=server.port)
    with redis.Redis.from_url(server.url) as client:
        worker = Worker(Node("redis-server", redis.Redis(connection_pool=pool), client))
        worker.manager.start()
        try:
            worker.hold("1")
            worker.hold("2")
            for number, error in enumerate(ERRORS, 1):
                worker.renewed_again("1", "2", times=1)
                FlakyConnection.errors.append(error)
                until(lambda number=number: len(worker.errors) >= number, f"the report of {error!r}")
            worker.renewed_again("1", "2")
        finally:
            FlakyConnection.errors.clear()
            worker.manager.stop()

    assert len(worker.errors) == len(ERRORS)
    for reported, error in zip(worker.errors, ERRORS, strict=True):
        assert reported is error or reported.__cause__ is error
    assert worker.lost == []


def test_callbacks_that_raise_are_logged_and_renewal_goes_on(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(node)
    calls: list[list[str]] = []

    def raise_at_first(job_ids: list[str]) -> None:
        calls.append(job_ids)
        raise RuntimeError("a mistake of the host")

    worker.manager._callbacks._on_renewed = raise_at_first
    worker.manager.start()
    try:
        worker.hold("42")
        until(lambda: len(calls) >= 2, "two renewals")
    finally:
        worker.manager.stop()

    assert "a mistake of the host" in caplog.text


def test_the_surface_may_be_called_from_any_native_thread() -> None:
    manager = LockManager("redis://never-connected", "mail")
    done: list[int] = []

    def track_some(base: int) -> None:
        for number in range(200):
            manager.track_job(f"{base}-{number}", "token")
            assert manager.is_tracked(f"{base}-{number}")
            if number % 2:
                manager.untrack_job(f"{base}-{number}")
        done.append(base)

    for base in range(4):
        start_thread(partial(track_some, base))
    until(lambda: len(done) == 4, "the end of the threads")

    assert manager.get_active_job_count() == 400
