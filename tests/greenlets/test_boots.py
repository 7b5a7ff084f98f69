"""A hundred first jobs at once start their process' part once."""

from __future__ import annotations

import gevent
import pytest

from echomq_plugin import LockOptions, attach
from echomq_plugin.boots import Boots


def test_greenlets_that_come_at_once_share_one_boot():
    boots, made, come = Boots(), [], []

    def boot() -> None:
        made.append(len(made))
        while len(come) < 100:
            gevent.sleep(0.01)

    def first_job() -> None:
        come.append(True)
        boots.run(boot)

    waiting = [gevent.spawn(first_job) for _ in range(100)]
    gevent.joinall(waiting, timeout=30, raise_error=True)
    assert made == [0]


def test_those_that_wait_share_the_error_and_the_next_call_begins_anew():
    boots, made = Boots(), []

    def boot() -> None:
        made.append(len(made))
        gevent.sleep(0.05)
        if len(made) == 1:
            raise ValueError("no")

    waiting = [gevent.spawn(_error_of, boots, boot) for _ in range(10)]
    gevent.joinall(waiting, timeout=30, raise_error=True)
    assert [greenlet.value for greenlet in waiting] == ["no"] * 10
    boots.run(boot)
    assert made == [0, 1]


def test_a_boot_that_is_killed_decides_nothing_for_the_others():
    boots, made = Boots(), []

    def boot() -> None:
        made.append(len(made))
        gevent.sleep(30 if len(made) == 1 else 0)

    killed = gevent.spawn(boots.run, boot)
    gevent.sleep(0)
    other = gevent.spawn(boots.run, boot)
    gevent.sleep(0)
    killed.kill()
    other.get(timeout=30)
    assert made == [0, 1]


def test_a_hundred_first_jobs_check_the_server_once(server, client, pm, monkeypatch):
    from echomq_plugin import plugin as plugin_module

    checks = []
    check = plugin_module.check_server
    monkeypatch.setattr(plugin_module, "check_server", lambda *given: checks.append(given) or check(*given))
    plugin = attach(pm, server.url, "mail", LockOptions())
    jobs = [gevent.spawn(plugin.job_start, "mail", number) for number in range(100)]
    gevent.joinall(jobs, timeout=60, raise_error=True)
    assert len(checks) == 1
    for job in jobs:
        plugin.job_finish(job.value, "completed")
    assert plugin.stop(timeout_ms=10_000)


def _error_of(boots: Boots, boot) -> str | None:
    with pytest.raises(ValueError, match="no") as caught:
        boots.run(boot)
    return str(caught.value)
