"""The demo's parts by themselves: what it counts, and how it shows it."""

from __future__ import annotations

import io
import json
import os

import pytest
from rich.console import Console

from echomq_plugin.cli import demo_table
from echomq_plugin.cli.demo_meter import Figures, Meter, MeteredScripts
from echomq_plugin.cli.demo_plan import DemoPlan
from echomq_plugin.cli.demo_runs import RunBook, note_run
from echomq_plugin.cli.demo_table import LineView, TableView, view_for
from echomq_plugin.cli.demo_watch import Sight, Watch
from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.scripts import Batch


def book_of(*runs):
    """Make a book from (job, began, ended or None)."""
    book = RunBook()
    for number, (job, began, ended) in enumerate(runs):
        book.add([json.dumps([job, f"token-{number}", "7", "began", str(began)])])
        if ended is not None:
            book.add([json.dumps([job, f"token-{number}", "7", "completed", str(ended)])])
    return book


@pytest.mark.parametrize(
    ("runs", "overlapping"),
    [
        ([], 0),
        ([("a", 1, 2), ("b", 1, 2)], 0),
        ([("a", 1, 2), ("a", 2, 3)], 0),
        ([("a", 1, 3), ("a", 2, 4)], 1),
        ([("a", 1, 9), ("a", 2, 3), ("a", 4, 5)], 2),
        ([("a", 1, None), ("a", 5, 6)], 1),
        ([("a", 5, 6), ("a", 1, 2)], 0),
    ],
    ids=str,
)
def test_runs_overlap_when_one_begins_before_another_of_its_job_has_ended(runs, overlapping):
    assert book_of(*runs).overlapping() == overlapping


def test_the_runs_of_a_dead_process_ended_when_it_died():
    book = book_of(("a", 1, None), ("b", 1, 2))
    assert [run.job_id for run in book.running(7)] == ["a"]
    book.end_of_process(7, 10)
    assert book.running(7) == []
    assert book.run_of("token-0").end == "killed"
    assert book.completed() == {"b"}
    book.add([json.dumps(["a", "later", "8", "began", "11"])])
    assert book.overlapping() == 0


def test_runs_write_down_themselves_by_the_servers_clock(client):
    before = client.time()
    note_run(client, "runs", "jöb", "token", "began")
    note_run(client, "runs", "jöb", "token", "completed")
    book = RunBook()
    book.add(client.lrange("runs", 0, -1))
    run = book.run_of("token")
    assert (run.job_id, run.pid, run.end) == ("jöb", os.getpid(), "completed")
    assert before[0] * 1_000_000 + before[1] <= run.began_at <= run.ended_at
    assert book.read == 2


def test_a_plan_comes_through_an_argument_unchanged():
    plan = DemoPlan("redis://x", "demo-1", 7, jobs=3)
    assert DemoPlan.from_text(plan.to_text()) == plan


def test_the_hub_is_blocked_and_jobs_run_for_longer_than_a_lock_lives():
    plan = DemoPlan("redis://x", "demo-1", 7)
    seconds = [json.loads(item)["seconds"] for item in plan.items()]
    assert len(seconds) == 400
    assert sum(second * 1_000 > plan.lock_duration for second in seconds) > 200
    assert plan.block_ms > plan.lock_duration
    # Nobody puts a job back before its run can have been told that its lock is lost.
    assert plan.options.stalled_interval // 2 > plan.options.renew_time


def test_the_meter_counts_calls_and_measures_gaps_at_the_source(server, client):
    meter = Meter()
    scripts = MeteredScripts(Connections(server.url, call_limit_ms=2_000), meter)
    keys = QueueKeys("emq", "jobs")
    client.set(keys.lock("a"), "token-a")
    now = [1_000]
    meter.now_ms = lambda: now[0]
    meter.run_began("token-a")
    for at in (1_400, 2_100, 2_200):
        now[0] = at
        assert scripts.extend_locks([Batch(keys, ["a", "b"], ["token-a", "token-b"])], 3_000) == [["b"]]
    figures = meter.figures
    assert (figures.ticks, figures.renewal_calls, figures.renewals, figures.last_renewed) == (3, 3, 3, 1)
    assert figures.max_renewal_gap_ms == 700
    meter.run_ended("token-a")
    now[0] = 9_000
    scripts.extend_locks([Batch(keys, ["a"], ["token-a"])], 3_000)
    assert figures.max_renewal_gap_ms == 700


def test_a_call_that_failed_renews_nothing_in_the_meter():
    meter = Meter()
    keys = QueueKeys("emq", "jobs")
    meter.ticked([Batch(keys, ["a"], ["t"])], [RedisCallError("renew locks", "no answer")], meter.now_ms())
    assert meter.figures.renewals == 0


def test_a_look_sees_the_lowest_ttl_of_the_locks_of_live_workers(client, decoded):
    plan = DemoPlan("redis://x", "demo-1", 7)
    watch = Watch(plan, decoded)
    assert watch.look(()).lowest_ttl_ms is None
    keys = QueueKeys("demo-1", "jobs")
    for job, life in (("a", 50_000), ("b", 20_000)):
        note_run(client, plan.runs_key, job, f"token-{job}", "began")
        client.set(keys.lock(job), f"token-{job}", px=life)
    client.lpush(plan.list_key, "waits")
    client.hset(plan.figures_key, 7, json.dumps({"locks": 2}))
    sight = watch.look([os.getpid()])
    assert 10_000 < sight.lowest_ttl_ms <= 20_000
    assert (sight.waiting, sight.taken, sight.completed) == (1, 0, 0)
    assert sight.figures == {7: Figures(locks=2)}
    assert watch.look([1]).lowest_ttl_ms is None
    watch.delete_lock("b")
    assert watch.look([os.getpid()]).lowest_ttl_ms > 20_000


SUMMARY = {
    "jobs": 400, "completed": 400, "lost_jobs": 0, "overlapping_runs": 0, "recovered": 3, "lock_lost_reports": 1,
    "ticks": 5, "renewal_calls": 5, "renewals": 100, "max_renewal_gap_ms": 1_500, "seconds": 20.0,
}  # fmt: skip


def test_a_terminal_shows_one_table_and_the_last_events(monkeypatch):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(demo_table, "Console", lambda **_: console)
    sight = Sight({7: Figures(locks=97, last_renewed=96, last_tick_ms=3), 8: Figures()}, 1_600, 10, 97, 250)
    with view_for(DemoPlan("redis://x", "demo-1", 7), to_stderr=False) as view:
        assert isinstance(view, TableView)
        view.show(sight, [7], RunBook())
        view.show(Sight({}, None, 0, 0, 0), [], RunBook())
        view.show(sight, [7], RunBook())
        for number in range(20):
            view.event(f"[event {number}]")
        view.end(SUMMARY)
    text = shown.getvalue()
    for words in ("96 in one call, 3 ms", "250 of 400 jobs completed", "1600 of 3000 ms", "[event 19]", "ended"):
        assert words in text
    assert "100 renewals in 5 calls over 5 ticks" in text


@pytest.mark.parametrize("to_stderr", [True, False])
def test_elsewhere_events_are_lines_and_markup_is_left_alone(capsys, to_stderr):
    with view_for(DemoPlan("redis://x", "demo-1", 7), to_stderr=to_stderr) as view:
        assert isinstance(view, LineView)
        view.event("[bold]job[/] " + "x" * 200)
        view.show(Sight({}, None, 0, 0, 0), [], RunBook())
        view.end({**SUMMARY, "lost_jobs": 2})
    printed = capsys.readouterr()
    text, other = (printed.err, printed.out) if to_stderr else (printed.out, printed.err)
    assert "[bold]job[/] " + "x" * 200 + "\n" in text
    assert "2 lost" in text
    assert other == ""
