"""The demo, whole and in a process of its own, and what it does when it cannot be told to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from echomq_plugin.cli import demo as demo_module
from echomq_plugin.cli.demo import Demo, run_demo
from echomq_plugin.cli.demo_plan import DemoPlan
from echomq_plugin.native import pause

KEYS = [
    "jobs",
    "completed",
    "lost_jobs",
    "overlapping_runs",
    "recovered",
    "lock_lost_reports",
    "ticks",
    "renewal_calls",
    "renewals",
    "max_renewal_gap_ms",
    "seconds",
]


def command(*arguments, module="echomq_plugin"):
    return [sys.executable, "-W", "error", "-m", module, *arguments]


class RecordingView:
    def __init__(self):
        self.events = []

    def event(self, text):
        self.events.append(text)

    def show(self, sight, live, book):
        pass

    def end(self, summary):
        pass


def workers_at(client):
    """Return the worker processes that have published figures."""
    return {int(pid) for key in client.scan_iter("demo-*:figures") for pid in client.hkeys(key)}


def eventually(condition):
    until = time.monotonic() + 45
    while not (found := condition()):
        assert time.monotonic() < until, f"never came true: {condition}"
        pause(0.05)
    return found


def test_the_demo_completes_every_job_and_says_so_in_its_last_line(client, server):
    client.set("mine", 1)
    done = subprocess.run(
        command("demo", "--json", "--redis-url", server.url), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert list(summary) == KEYS
    assert (summary["jobs"], summary["completed"], summary["lost_jobs"]) == (400, 400, 0)
    assert summary["overlapping_runs"] == 0
    # The jobs of the killed worker, and the one whose lock was deleted.
    assert summary["recovered"] > 50
    assert summary["lock_lost_reports"] >= 1
    assert summary["renewal_calls"] == summary["ticks"]
    assert summary["renewals"] > summary["renewal_calls"]
    assert summary["max_renewal_gap_ms"] < 3_000
    assert summary["seconds"] < 60
    assert "its greenlet ended by LockLostInterrupt" in done.stderr
    assert "the hub turns again" in done.stderr
    # What it wrote into somebody's server is gone.
    assert client.keys("*") == [b"mine"]


def test_a_demo_that_is_told_to_stop_leaves_no_process_and_no_key(client, server):
    running = subprocess.Popen(
        command("demo", "--redis-url", server.url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        eventually(lambda: len(workers_at(client)) == 2)
        eventually(lambda: client.llen(next(iter(client.scan_iter("demo-*:list:processing")), "none")) > 0)
        workers = workers_at(client)
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=45)
        assert running.returncode == 128 + signal.SIGTERM, output
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
        assert client.keys("demo-*") == []
    finally:
        running.kill()
        running.wait(45)


def test_workers_end_when_the_demo_is_killed(client, server):
    before = len(client.client_list())
    running = subprocess.Popen(command("demo", "--redis-url", server.url), stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: len(workers_at(client)) == 2)
    finally:
        running.kill()
        running.wait(45)
    # Not by their pids: whoever adopts the dead may take his time to bury them.
    eventually(lambda: len(client.client_list()) <= before)


def small_plan(server, **changes):
    return DemoPlan(server.url, "demo-test", os.getpid(), **{"jobs": 30, "greenlets": 10, **changes})


def test_a_demo_that_is_out_of_time_has_failed_and_says_what_it_waited_for(client, server, decoded):
    view = RecordingView()
    demo = Demo(small_plan(server, limit_s=0.0), decoded, view)
    summary = demo.run()
    assert demo.failed
    assert summary["completed"] == 0
    assert summary["lost_jobs"] == 30
    assert "failed: out of time before this came true: both workers run jobs" in view.events


def test_a_worker_that_dies_by_itself_fails_the_demo_and_its_last_words_are_shown(client, server, decoded, monkeypatch):
    monkeypatch.setattr(DemoPlan, "to_text", lambda self: "no JSON")
    view = RecordingView()
    demo = Demo(small_plan(server), decoded, view)
    demo.run()
    assert demo.failed
    assert any("ended by itself, with code 1" in event for event in view.events)
    assert any("JSONDecodeError" in event for event in view.events)


@pytest.mark.parametrize("changes", [{"lost_jobs": 1}, {"overlapping_runs": 1}, {"failed": True}], ids=str)
def test_the_exit_code_is_0_only_when_all_went_well(server, monkeypatch, capsys, changes):
    good = dict.fromkeys(KEYS, 0)

    def told(self):
        self.failed = changes.get("failed", False)
        return {**good, **{name: value for name, value in changes.items() if name in good}}

    monkeypatch.setattr(Demo, "run", told)
    assert run_demo(server.url, as_json=True) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).keys() == good.keys()
    monkeypatch.setattr(Demo, "run", lambda self: good)
    assert run_demo(server.url, as_json=False) == 0
    assert "0 of 0 jobs completed" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_named(capsys):
    assert run_demo("redis://127.0.0.1:1", as_json=False) == 1
    assert "redis://127.0.0.1:1: Redis gave no answer" in capsys.readouterr().err


def test_a_server_is_named_without_its_password(capsys):
    for url in ("redis://worker:secret@127.0.0.1:1/3", "redis://127.0.0.1:1/3?username=worker&password=secret"):
        assert run_demo(url, as_json=False) == 1
        said = capsys.readouterr().err
        assert "redis://127.0.0.1:1/3: Redis gave no answer" in said
        assert "secret" not in said


def test_without_a_url_the_demo_starts_a_server_and_stops_it(monkeypatch):
    urls = []

    def told(self):
        urls.append(self.plan.url)
        return dict.fromkeys(KEYS, 0)

    monkeypatch.setattr(Demo, "run", told)
    assert run_demo(None, as_json=True) == 0
    assert run_demo(urls[0], as_json=True) == 1


def test_keys_that_cannot_be_removed_end_nothing(own_server, monkeypatch):
    def told(self):
        own_server.stop()
        return dict.fromkeys(KEYS, 0)

    monkeypatch.setattr(Demo, "run", told)
    assert run_demo(own_server.url, as_json=True) == 0
    assert demo_module.signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
