"""A name that resolves slowly: the limit of a call covers its resolution, and nobody else waits for it."""

from __future__ import annotations

import _socket
from collections.abc import Iterator

import pluggy
import pytest
import redis
from faults.conftest import Recorder
from faults.waiting import eventually

from echomq_plugin import FinishResult, LockOptions, StartUndecidedError, attach
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.native import allocate_lock

NAME = "slow.invalid"
OPTIONS = LockOptions(lock_duration=30_000, lock_renew_time=3_000, call_limit_ms=1_000)


class Names:
    """The system's resolver, to which one more name is known, and which may not answer for it."""

    def __init__(self) -> None:
        self.asked = 0
        self._answers = allocate_lock()
        self._resolve = _socket.getaddrinfo

    def __call__(self, host: object, *rest: object, **more: object) -> object:
        if host in (NAME, NAME.encode()):
            self.asked += 1
            with self._answers:  # natively, in a thread of its own, as the system's resolver waits
                host = "127.0.0.1"
        return self._resolve(host, *rest, **more)  # type: ignore[arg-type]

    def hang(self) -> None:
        self._answers.acquire()

    def answer(self) -> None:
        if self._answers.locked():
            self._answers.release()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(_socket, "getaddrinfo", names)
    yield names
    names.answer()


def test_a_name_that_does_not_resolve_costs_its_own_calls_their_limit_and_nobody_anything_else(
    names: Names, server: EmbeddedServer, client: redis.Redis, pm: pluggy.PluginManager, recorder: Recorder
) -> None:
    plugin = attach(pm, f"redis://{NAME}:{server.port}", "mail", OPTIONS)
    other_pm = pluggy.PluginManager("other")
    neighbour = Recorder(other_pm)
    other_pm.register(neighbour)
    other = attach(other_pm, server.url, "mail", OPTIONS)
    lock, neighbours_lock = plugin.job_start("mail", "1"), other.job_start("mail", "2")
    eventually(lambda: "1" in recorder.renewed and "2" in neighbour.renewed)

    names.hang()
    names.asked = 0
    client.client_kill_filter(_type="normal", skipme=True)
    # No answer for ever, and yet call after call ends and is repeated; it is released at the end of the test.
    eventually(lambda: len(recorder.failed) >= 3 and names.asked >= 3)
    neighbour.renewed.clear()
    eventually(lambda: neighbour.renewed.count("2") >= 2, "others are renewed meanwhile")
    with pytest.raises(StartUndecidedError):
        plugin.job_start("mail", "3")
    assert recorder.lost == []
    assert other.job_finish(neighbours_lock, "completed") is FinishResult.RELEASED

    names.answer()
    recorder.renewed.clear()
    eventually(lambda: "1" in recorder.renewed)
    assert recorder.lost == []
    assert neighbour.lost == []
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
    eventually(lambda: plugin.manager.wait_until_idle(0))
    plugin.stop(timeout_ms=0)
    other.stop(timeout_ms=0)
