"""Whole worker processes of the list consumer, and what becomes of jobs when they die, stop, or lose Redis."""

from __future__ import annotations

import signal

import pytest

both = pytest.mark.parametrize("patched", [True, False], ids=["patched", "unpatched"])


@both
def test_jobs_of_a_killed_worker_run_again_and_never_beside_a_live_run(world, wait_until, patched):
    for number in range(20):
        world.push(f"job-{number}", "long at first")
    dying = world.start_worker(patched=patched)
    # Not by their notes: a job that is killed before it has counted this run would take its next one for the first.
    wait_until(lambda: len(world.client.keys("runs-of:*")) == 20, "all jobs run")
    died_at = world.kill(dying)
    # They wait for their locks to run out, whoever is there to run them.
    world.start_worker(patched=patched)
    wait_until(lambda: len(world.completed()) == 20, "all jobs complete")
    for number in range(20):
        first, second = world.runs(f"job-{number}")
        assert first.pid == dying.pid
        assert second.started_at > died_at
        assert second.end == "end"
    wait_until(lambda: world.traces() == [], "nothing is left")


def test_deliveries_of_one_job_wait_for_each_other_and_none_is_dropped(world, wait_until):
    for copy in range(8):
        for number in range(5):
            world.push(f"job-{number}", "sleep", 0.05, copy)
    for _ in range(2):
        world.start_worker()
    wait_until(lambda: world.traces() == [] and len(world.runs()) == 40, "all deliveries ran")
    assert {run.end for run in world.runs()} == {"end"}
    assert world.overlapping() == []


@both
def test_a_warm_shutdown_renews_until_the_last_job_ends_and_takes_nothing_more(world, wait_until, patched):
    world.push("long", "sleep", 5)
    worker = world.start_worker(concurrency=1, patched=patched)
    wait_until(world.running, "the job runs")
    world.push("later", "sleep", 0)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(45) == 0
    assert "all jobs ended" in world.log(worker)
    # More than two lock durations passed meanwhile; a lock that was not renewed would have been lost.
    assert [(run.job_id, run.end) for run in world.runs()] == [("long", "end")]
    assert world.traces() == ["mail"]
    assert world.client.llen("mail") == 1


def test_a_second_sigterm_puts_the_running_jobs_back_to_be_taken_next(world, wait_until):
    world.push("one", "sleep", 600)
    world.push("two", "sleep", 600)
    worker = world.start_worker(concurrency=2)
    wait_until(lambda: len(world.running()) == 2, "both jobs run")
    world.push("later", "sleep", 600)
    worker.send_signal(signal.SIGTERM)
    # Two signals that come at once may be delivered as one.
    wait_until(lambda: "shutdown begins" in world.log(worker), "the first signal is heard")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(45) == 0
    assert {run.end for run in world.runs()} == {"GreenletExit"}
    assert world.traces() == ["mail"]
    waiting = world.client.lrange("mail", 0, -1)
    assert len(waiting) == 3
    assert '"later"' in waiting[0]


def test_a_shutdown_is_forced_once_its_time_is_over(world, wait_until):
    world.push("one", "sleep", 600)
    worker = world.start_worker(shutdown_timeout_ms=300)
    wait_until(world.running, "the job runs")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(45) == 0
    assert "all jobs ended" in world.log(worker)
    assert world.traces() == ["mail"]


@both
def test_a_restart_of_redis_in_the_middle_loses_no_job(own_world, wait_until, patched):
    for number in range(200):
        own_world.push(f"job-{number}", "sleep", 0.3)
    worker = own_world.start_worker(patched=patched, lock_duration=6_000, lock_renew_time=1_000)
    wait_until(lambda: len(own_world.completed()) > 20, "jobs complete")
    own_world.server.stop()
    wait_until(lambda: "redis unreachable" in own_world.log(worker), "it is noticed")
    own_world.server.start()
    wait_until(lambda: len(own_world.completed()) == 200, "all jobs complete")
    wait_until(lambda: own_world.traces() == [], "nothing is left")
    assert own_world.overlapping() == []
    assert worker.poll() is None


def test_a_job_that_kills_its_workers_ends_among_the_failed_ones(world, wait_until):
    world.push("poison", "die")
    for _ in range(2):
        worker = world.start_worker()
        assert worker.wait(45) == -signal.SIGKILL
    world.push("good", "sleep", 0)
    world.start_worker()
    wait_until(lambda: world.client.llen("mail:failed") == 1, "the job is given up")
    wait_until(lambda: world.traces() == [], "nothing is left")
    assert len(world.runs("poison")) == 2
    assert world.completed() == {"good"}


def test_a_job_that_ends_its_process_counts_as_stalled(world, wait_until):
    world.push("exits", "exit")
    for _ in range(2):
        worker = world.start_worker()
        assert worker.wait(45) == 3
    world.start_worker()
    wait_until(lambda: world.client.llen("mail:failed") == 1, "the job is given up")
    assert [run.end for run in world.runs("exits")] == ["SystemExit", "SystemExit"]


def test_a_job_that_blocks_the_hub_for_longer_than_a_lock_lives_loses_no_lock(world, wait_until):
    for number in range(10):
        world.push(f"job-{number}", "sleep", 1)
    world.push("blocks", "block", 4)
    world.start_worker()
    world.start_worker()
    wait_until(lambda: len(world.completed()) == 11, "all jobs complete")
    wait_until(lambda: world.traces() == [], "nothing is left")
    assert len(world.runs("blocks")) == 1
    assert world.overlapping() == []
