"""RecordingPlugin and fake_redis, used as an author of hooks would use them: no server, no waiting."""

from __future__ import annotations

import os
import sys

import pluggy
import pytest

from echomq_plugin import LockOptions, LostLock, StalledJob, attach
from echomq_plugin.entries import EntryData
from echomq_plugin.errors import MissingExtraError
from echomq_plugin.hookspecs import SPECS
from echomq_plugin.testing import FakeClock, RecordingPlugin, fake_redis, lua_modules

OPTIONS = LockOptions(dedicated_hub=False)


def test_a_whole_life_of_a_job_can_be_tested_without_a_server() -> None:
    pm = pluggy.PluginManager("someones_app")
    clock = FakeClock()
    connection = fake_redis()
    plugin = attach(pm, connection, "mail", OPTIONS, clock=clock)
    recording = RecordingPlugin(pm)
    pm.register(recording)
    plugin.start()
    try:
        kept = pm.hook.echomq_job_start(queue="mail", job_id="42", delivery=None, payload=None, token=None)
        robbed = pm.hook.echomq_job_start(queue="mail", job_id="43", delivery=None, payload=None, token=None)
        connection.delete("emq:mail:43:lock")

        clock.advance(7_501)

        recording.wait_for("echomq_lock_lost")
        assert [(lock.job_id, lock.reason, lock.held_for_ms) for lock in recording.lost] == [("43", "missing", 7_501)]
        assert recording.wait_for("echomq_locks_renewed") == [{"queue": "mail", "job_ids": ("42",)}]
        assert pm.hook.echomq_job_finish(lock=kept, outcome="completed").name == "RELEASED"
        assert robbed.lost is not None
    finally:
        plugin.stop(timeout_ms=0)


def test_the_sweep_of_a_fake_clock_needs_no_real_time_either() -> None:
    pm = pluggy.PluginManager("someones_app")
    clock = FakeClock()
    connection = fake_redis()
    plugin = attach(pm, connection, "mail", OPTIONS, clock=clock)
    recording = RecordingPlugin(pm, put_back=lambda job: True)
    pm.register(recording)
    # What a worker that died long ago has left behind.
    connection.hset("emq:mail:held", "7", "dead-token")
    connection.hset("emq:mail:held-data", "7", EntryData("dead-host:1", 0, payload="body").pack())
    plugin.start()
    try:
        connection.delete("emq:mail:held-check")
        clock.advance(15_000)
        connection.delete("emq:mail:held-check")
        clock.advance(15_000)

        recording.wait_for("echomq_job_recovered")
        assert recording.jobs("echomq_job_stalled") == [StalledJob("mail", "7", "body", None, 1, "dead-host:1")]
    finally:
        plugin.stop(timeout_ms=0)


def test_it_implements_every_notification_hook() -> None:
    pm = pluggy.PluginManager("someones_app")
    recording = RecordingPlugin(pm)

    implemented = {name for name in SPECS if hasattr(recording, name) and pm.parse_hookimpl_opts(recording, name)}

    assert implemented == set(SPECS) - {"echomq_job_start", "echomq_job_finish"}


def test_what_it_recorded_can_be_asked_for_and_forgotten() -> None:
    pm = pluggy.PluginManager("someones_app")
    attach(pm, fake_redis(), "mail", OPTIONS)
    recording = RecordingPlugin(pm)
    pm.register(recording)
    lost = LostLock("42", "token", "taken", 10)

    pm.hook.echomq_lock_lost(queue="mail", lost=(lost,))
    pm.hook.echomq_locks_renewed(queue="mail", job_ids=("1", "2"))
    error = RuntimeError("no answer")
    pm.hook.echomq_renewal_failed(queue="mail", job_ids=("1",), error=error, retry_in_ms=500, at_risk_in_ms=9_000)
    pm.hook.echomq_check_failed(queue=None, error=error, retry_in_ms=500)
    job = StalledJob("mail", "7", b"payload", "1", 2)
    pm.hook.echomq_job_recovered(job=job)
    pm.hook.echomq_job_abandoned(job=job)

    assert pm.hook.echomq_job_stalled(job=job) is None
    assert recording.lost == [lost]
    assert recording.renewed_ids == ["1", "2"]
    assert recording.errors == [error, error]
    assert [recording.jobs(f"echomq_job_{what}") for what in ("stalled", "recovered", "abandoned")] == [[job]] * 3
    recording.clear()
    assert recording.calls == []


def test_waiting_for_what_never_comes_says_what_came_instead() -> None:
    pm = pluggy.PluginManager("someones_app")
    recording = RecordingPlugin(pm)
    recording.echomq_locks_renewed(queue="mail", job_ids=("1",))

    with pytest.raises(TimeoutError, match=r"echomq_lock_lost was not called 1 times.*echomq_locks_renewed"):
        recording.wait_for("echomq_lock_lost", timeout_ms=20)


def test_the_folder_of_our_lua_is_put_on_luas_path_once_and_keeps_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LUA_PATH", "/their/own/?.lua")

    assert lua_modules() == lua_modules() == {"cmsgpack"}

    ours, *others = os.environ["LUA_PATH"].split(";")
    assert ours.endswith("/echomq_plugin/testing/lua/?.lua")
    assert others == ["/their/own/?.lua"]


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_fakeredis_or_its_lua_the_error_names_the_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    with pytest.raises(MissingExtraError, match=r"pip install 'echomq-plugin\[testing\]'"):
        fake_redis()
