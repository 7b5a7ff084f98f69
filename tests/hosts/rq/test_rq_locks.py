"""One lock for each run, taken before it, kept through it and given back after RQ's own write."""

from __future__ import annotations

import signal
import time

import pytest
import redis
import rq_jobs
from conftest import FAST, StartWorker, ended, overlapping, runs, until
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry

FORKING = "echomq_plugin.hosts.rq.LockedWorker"
SIMPLE = "echomq_plugin.hosts.rq.LockedSimpleWorker"
GEVENT = "echomq_plugin.hosts.rq.GeventWorker"
SPAWNING = "echomq_plugin.hosts.rq.LockedSpawnWorker"


def has_spawn_worker() -> bool:
    try:
        from rq.worker import SpawnWorker  # noqa: F401
    except ImportError:
        return False
    return True


# The others are held to the same rules by test_rq_contract.py.
WITH_WORK_HORSES = [FORKING, *([SPAWNING] if has_spawn_worker() else [])]
WORKERS = [FORKING, SIMPLE, GEVENT, *([SPAWNING] if has_spawn_worker() else [])]


def lock_key(queue: str, job_id: str) -> str:
    return f"emq:{queue}:{job_id}:lock"


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_job_longer_than_its_lock_keeps_it_and_gives_it_back(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """The worker renews, whatever the work-horse does."""
    job = Queue("q", connection=client).enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("--burst", "q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    token = client.get(lock_key("q", job.id))
    assert token
    end = time.monotonic() + 2 * int(FAST["ECHOMQ_LOCK_DURATION"]) / 1000
    while time.monotonic() < end:
        assert client.get(lock_key("q", job.id)) == token
        assert client.hget("emq:q:held", job.id) == token
        time.sleep(0.05)
    client.set("go", 1)
    assert worker.wait() == 0
    assert runs(client, job.id) == ["start", "end"]
    assert job.get_status() == JobStatus.FINISHED
    assert not client.exists(lock_key("q", job.id), "emq:q:held", "emq:q:held-data", "emq:q:stalled-count")


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_second_delivery_of_a_running_run_is_dropped(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """It leaves the intermediate list, and the job's state is the running run's."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.wait_for_key, "go")
    first = start_worker("--burst", "q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    before = client.hgetall(job.key)
    queue.push_job_id(job.id)
    second = start_worker("--burst", "q", worker_class=worker_class)
    assert second.wait() == 0
    assert client.hgetall(job.key) == before
    assert client.llen(queue.key) == 0
    assert client.llen(queue.intermediate_queue_key) == 0
    client.set("go", 1)
    assert first.wait() == 0
    assert runs(client, job.id) == ["start", "end"]
    assert job.get_status() == JobStatus.FINISHED


@pytest.mark.parametrize("failing", [rq_jobs.fail_times, rq_jobs.give_back], ids=["raises", "returns Retry"])
def test_a_jobs_own_retry_is_never_dropped(failing: object, client: redis.Redis, start_worker: StartWorker) -> None:
    """Pushed before the first run let go, with idle workers waiting for it."""
    if failing is rq_jobs.give_back and not hasattr(Job, "_handle_retry_result"):
        failing = rq_jobs.fail_times  # the oldest RQ knows no returned Retry
    queue = Queue("q", connection=client)
    workers = [start_worker("q") for _ in range(6)]
    until(lambda: client.scard("rq:workers") == 6)
    for _ in range(8):
        job = queue.enqueue(failing, 3, retry=Retry(max=3))
        until(lambda job=job: job.get_status() in (JobStatus.FINISHED, JobStatus.FAILED))
        assert job.get_status() == JobStatus.FINISHED
        assert runs(client, job.id) == ["start", "end"] * 4
        assert not overlapping(client, job.id)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        assert worker.wait() == 0
    assert client.llen(queue.key) == 0
    assert not client.exists("emq:q:held")


@pytest.mark.parametrize("worker_class", WORKERS)
def test_a_failed_job_and_a_job_out_of_retries_end_as_with_the_stock_worker(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    queue = Queue("q", connection=client)
    failed = queue.enqueue(rq_jobs.fail)
    tired = queue.enqueue(rq_jobs.fail_times, 5, retry=Retry(max=2))
    timed_out = queue.enqueue(rq_jobs.sleep, 20, job_timeout=1)
    assert start_worker("--burst", "q", worker_class=worker_class).wait() == 0
    registry = FailedJobRegistry(queue=queue)
    assert set(registry.get_job_ids()) == {failed.id, tired.id, timed_out.id}
    assert len(runs(client, tired.id)) == 6
    assert "on purpose" in failed.latest_result().exc_string
    assert "JobTimeoutException" in timed_out.latest_result().exc_string
    assert not client.exists("emq:q:held")
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0


def test_several_queues_with_odd_names_are_locked_each_for_itself(
    client: redis.Redis, start_worker: StartWorker
) -> None:
    """A name that could not be part of a key is percent-encoded."""
    one = Queue("a:b", connection=client).enqueue(rq_jobs.sleep, 0.1)
    other = Queue("100%", connection=client).enqueue(rq_jobs.sleep, 0.1)
    assert start_worker("--burst", "a:b", "100%").wait() == 0
    assert ended(client, one.id)
    assert ended(client, other.id)
    assert {b"a%3Ab", b"100%25"} <= client.smembers("emq:queues")


@pytest.mark.parametrize("worker_class", WORKERS)
def test_dependents_run_after_what_they_wait_for(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    queue = Queue("q", connection=client)
    first = queue.enqueue(rq_jobs.sleep, 0.1)
    second = queue.enqueue(rq_jobs.sleep, 0.1, depends_on=first)
    assert start_worker("--burst", "q", worker_class=worker_class).wait() == 0
    assert first.get_status() == second.get_status() == JobStatus.FINISHED


def test_a_work_horse_that_is_killed_fails_its_job_and_its_lock_is_given_back(
    client: redis.Redis, start_worker: StartWorker
) -> None:
    """The worker does not renew for a dead child."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.die)
    assert start_worker("--burst", "q").wait() == 0
    assert job.get_status() == JobStatus.FAILED
    assert not client.exists(lock_key("q", job.id), "emq:q:held")


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_warm_shutdown_waits_for_the_job_and_keeps_its_lock(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    job = Queue("q", connection=client).enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    worker.signal(signal.SIGTERM)
    end = time.monotonic() + 1.5 * int(FAST["ECHOMQ_LOCK_DURATION"]) / 1000
    while time.monotonic() < end:
        assert client.exists(lock_key("q", job.id))
        time.sleep(0.05)
    client.set("go", 1)
    assert worker.wait() == 0
    assert job.get_status() == JobStatus.FINISHED
    assert not client.exists("emq:q:held")


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_cold_shutdown_puts_the_job_back(worker_class: str, client: redis.Redis, start_worker: StartWorker) -> None:
    """It was interrupted: it has neither failed nor stalled."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    worker.signal(signal.SIGTERM)
    time.sleep(1.1)  # RQ takes a second signal within a second for the same one
    worker.signal(signal.SIGTERM)
    worker.wait()
    assert job.get_status() == JobStatus.QUEUED
    assert client.lrange(queue.key, 0, -1) == [job.id.encode()]
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0
    assert not client.exists(lock_key("q", job.id), "emq:q:held", "emq:q:stalled-count")
    client.set("go", 1)
    assert start_worker("--burst", "q", worker_class=worker_class).wait() == 0
    assert job.get_status() == JobStatus.FINISHED


@pytest.mark.parametrize(
    ("environment", "queue", "message"),
    [
        ({"ECHOMQ_LOCK_DURATION": "soon"}, "q", "ECHOMQ_LOCK_DURATION='soon': must be a whole number"),
        ({"ECHOMQ_LOCK_DURATION": "-5"}, "q", "lock_duration=-5: must be greater than 0"),
        ({"ECHOMQ_PREFIX": "a:b"}, "q", "must not contain ':'"),
        ({}, "\udcff", "has no UTF-8 form"),
    ],
    ids=["no number", "negative", "prefix", "queue name"],
)
def test_bad_input_is_refused_before_any_job_is_taken(
    environment: dict[str, str], queue: str, message: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    names = ["q"] if queue == "q" else [queue, "q"]
    waiting = Queue("q", connection=client).enqueue(rq_jobs.nothing)
    worker = start_worker("--burst", *names, **environment)
    assert worker.wait() != 0
    assert message in worker.log()
    assert client.lrange("rq:queue:q", 0, -1) == [waiting.id.encode()]
    assert not client.scard("rq:workers")
