"""A lock that its host took is renewed and watched here; it is never taken, released or deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pluggy
import pytest
import redis

from echomq_plugin import (
    FinishResult,
    LockHeldError,
    LockLostError,
    LockOptions,
    LockPlugin,
    LostLock,
    StartUndecidedError,
    attach,
    hookimpl_for,
)
from echomq_plugin.embedded import EmbeddedServer

KEY = "bull:videos:7:lock"
OPTIONS = LockOptions(prefix="bull", lock_duration=60_000, call_limit_ms=5_000)


class Recorder:
    """Keeps what the hooks are told."""

    def __init__(self) -> None:
        self.renewed: list[str] = []
        self.lost: list[tuple[str, str, str]] = []

    @hookimpl_for(pluggy.PluginManager("given"))
    def echomq_locks_renewed(self, queue: str, job_ids: tuple[str, ...]) -> None:
        self.renewed += job_ids

    @hookimpl_for(pluggy.PluginManager("given"))
    def echomq_lock_lost(self, queue: str, lost: tuple[LostLock, ...]) -> None:
        self.lost += [(one.job_id, one.token, one.reason) for one in lost]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def plugin(server: EmbeddedServer, client: redis.Redis, recorder: Recorder) -> Iterator[LockPlugin]:
    """A plugin whose next tick is far away: only what is asked for at once happens."""
    pm = pluggy.PluginManager("given")
    pm.register(recorder)
    plugin = attach(pm, server.url, "videos", OPTIONS)
    plugin.start()
    yield plugin
    plugin.stop(timeout_ms=0)


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_given_lock_is_renewed_at_once_and_written_nowhere_else(
    plugin: LockPlugin, client: redis.Redis, recorder: Recorder
) -> None:
    client.set(KEY, "Node's", px=OPTIONS.interval // 2)  # it would not live to see the first tick

    lock = plugin.job_start("videos", "7", token="Node's")
    wait_until(lambda: recorder.renewed or recorder.lost)

    assert (recorder.renewed, recorder.lost) == (["7"], [])
    assert client.pttl(KEY) > 30_000
    assert (lock.given, lock.fence, lock.confirm()) == (True, 0, True)
    assert client.exists("bull:videos:held", "bull:videos:held-data", "bull:videos:fence") == 0


@pytest.mark.parametrize(
    ("holder", "result"),
    [("Node's", FinishResult.RELEASED), (None, FinishResult.RELEASED), ("another's", FinishResult.LOST)],
    ids=["still the host's", "completed by the host already", "taken over since the last tick"],
)
def test_the_end_of_a_given_lock_says_who_owns_the_job_and_touches_nothing(
    plugin: LockPlugin, client: redis.Redis, recorder: Recorder, holder: str | None, result: FinishResult
) -> None:
    client.set(KEY, "Node's", px=20_000)
    lock = plugin.job_start("videos", "7", token="Node's")
    wait_until(lambda: recorder.renewed)
    client.delete(KEY)
    if holder is not None:
        client.set(KEY, holder)

    assert plugin.job_finish(lock, "completed") is result
    assert plugin.job_finish(lock, "completed") is result

    assert client.get(KEY) == (holder and holder.encode())
    assert not plugin.manager.is_tracked("7")


def test_a_block_whose_given_lock_was_taken_over_since_the_last_tick_says_so_at_its_end(
    plugin: LockPlugin, client: redis.Redis, recorder: Recorder
) -> None:
    client.set(KEY, "Node's", px=20_000)

    def block() -> None:
        with plugin.job("7", token="Node's"):
            wait_until(lambda: recorder.renewed)
            client.set(KEY, "another's")

    with pytest.raises(LockLostError):
        block()


def test_a_given_token_that_the_server_has_takes_the_job_from_the_run_before(
    plugin: LockPlugin, client: redis.Redis, recorder: Recorder
) -> None:
    """The host took the job anew and hands it to the process that still runs it: that run has lost it."""
    client.set(KEY, "first", px=20_000)
    first = plugin.job_start("videos", "7", token="first")
    wait_until(lambda: recorder.renewed == ["7"])
    client.set(KEY, "second", px=20_000)

    second = plugin.job_start("videos", "7", token="second")
    wait_until(lambda: recorder.renewed == ["7", "7"])

    wait_until(lambda: recorder.lost)
    assert recorder.lost == [("7", "first", "taken")]
    assert plugin.job_finish(first, "completed") is FinishResult.LOST
    assert plugin.job_finish(second, "completed") is FinishResult.RELEASED


def test_a_given_token_that_comes_late_does_not_take_the_job_from_the_run_that_has_it(
    plugin: LockPlugin, client: redis.Redis, recorder: Recorder
) -> None:
    client.set(KEY, "second", px=20_000)
    second = plugin.job_start("videos", "7", token="second")

    with pytest.raises(LockHeldError):
        plugin.job_start("videos", "7", token="first")

    assert second.believed
    assert plugin.job_finish(second, "completed") is FinishResult.RELEASED


def test_without_an_answer_the_end_is_unknown_and_a_second_token_is_undecided(own_server: EmbeddedServer) -> None:
    options = LockOptions(prefix="bull", lock_duration=60_000, call_limit_ms=300)
    plugin = attach(pluggy.PluginManager("given"), own_server.url, "videos", options)
    plugin.start()
    lock = plugin.job_start("videos", "7", token="first")
    own_server.stop()

    with pytest.raises(StartUndecidedError):
        plugin.job_start("videos", "7", token="second")

    assert plugin.job_finish(lock, "completed") is FinishResult.UNKNOWN
    assert plugin.stop(timeout_ms=0)
