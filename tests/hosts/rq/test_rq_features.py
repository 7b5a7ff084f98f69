"""What RQ's users rely on goes on under locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import redis
import rq_jobs
from conftest import FAST, HERE, StartWorker, runs, until
from rq import Queue
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from test_rq_locks import FORKING, GEVENT, SIMPLE, WITH_WORK_HORSES, WORKERS, lock_key

from echomq_plugin.embedded import EmbeddedServer


class MyJob(Job):
    """A job class of an app's own."""


class MyQueue(Queue):
    """And its queue class."""

    job_class = MyJob


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_stop_job_stops_the_job_and_the_lock_is_given_back(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """GeventWorker's is in test_rq_gevent_worker.py."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    send_stop_job_command(client, job.id)
    until(lambda: job.get_status() == JobStatus.STOPPED)
    assert job.id in FailedJobRegistry(queue=queue)
    until(lambda: not client.exists(lock_key("q", job.id), "emq:q:held"))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_stop_job_leaves_a_simple_worker_alive(client: redis.Redis, start_worker: StartWorker) -> None:
    """It has no work-horse, and process group 0 would be its own."""
    job = Queue("q", connection=client).enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("--burst", "q", worker_class=SIMPLE)
    until(lambda: runs(client, job.id) == ["start"])
    send_stop_job_command(client, job.id)
    client.set("go", 1)
    assert worker.wait() == 0
    assert job.get_status() == JobStatus.FINISHED


@pytest.mark.parametrize("worker_class", [*WITH_WORK_HORSES, GEVENT])
def test_classes_and_serializers_of_an_apps_own(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """Also where such a job comes back from a dead worker."""
    options = ["--job-class", "test_rq_features.MyJob", "--queue-class", "test_rq_features.MyQueue"]
    options += ["--serializer", "rq.serializers.JSONSerializer"]
    queue = MyQueue("q", connection=client, serializer=JSONSerializer)
    victim = start_worker(*options, "q", worker_class=worker_class)
    job = queue.enqueue(rq_jobs.sleep_first_time, 60)
    until(lambda: runs(client, job.id) == ["start"])
    victim.kill()
    start_worker(*options, "q", worker_class=worker_class)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    assert runs(client, job.id) == ["start", "start", "end"]


@pytest.mark.parametrize("worker_class", [*WITH_WORK_HORSES, SIMPLE])
def test_scheduled_jobs_are_enqueued(worker_class: str, client: redis.Redis, start_worker: StartWorker) -> None:
    job = Queue("q", connection=client).enqueue_in(timedelta(seconds=1), rq_jobs.sleep, 0.1)
    worker = start_worker("--with-scheduler", "q", worker_class=worker_class)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.parametrize("worker_class", WORKERS)
def test_a_worker_pool_of_locked_workers(worker_class: str, server: EmbeddedServer, client: redis.Redis) -> None:
    jobs = [Queue("q", connection=client).enqueue(rq_jobs.sleep, 0.1) for _ in range(4)]
    rq = str(Path(sys.executable).with_name("rq"))
    path = os.pathsep.join([str(HERE.parents[2]), str(HERE)])
    pool = subprocess.run(
        [rq, "worker-pool", "-w", worker_class, "-n", "2", "--burst", "--url", server.url, "q"],
        env={**os.environ, **FAST, "PYTHONPATH": path, "TEST_REDIS_URL": server.url},
        timeout=60,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert pool.returncode == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in jobs)
    assert not client.exists("emq:q:held")


def test_a_forking_worker_in_a_patched_process_works_and_says_what_to_use(
    client: redis.Redis, start_worker: StartWorker
) -> None:
    """Its work-horses neither hang nor disturb the renewal."""
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.sleep, 0.05) for _ in range(8)]
    long = queue.enqueue(rq_jobs.sleep, 3)
    worker = start_worker("--burst", "q", worker_class=FORKING, patched=True)
    assert worker.wait() == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in [*jobs, long])
    assert runs(client, long.id) == ["start", "end"]
    assert "use GeventWorker" in worker.log()


def test_two_hundred_work_horses_while_the_worker_renews(client: redis.Redis, start_worker: StartWorker) -> None:
    """Renewal calls every 50 ms or so, and a fork at any moment of them."""
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.nothing) for _ in range(200)]
    worker = start_worker(
        "--burst", "--quiet", "q", ECHOMQ_LOCK_DURATION="600", ECHOMQ_LOCK_RENEW_TIME="100", ECHOMQ_CALL_LIMIT_MS="240"
    )
    assert worker.wait(110) == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in jobs)
    assert not client.exists("emq:q:held")


def test_a_work_horse_inherits_no_hub(client: redis.Redis, start_worker: StartWorker) -> None:
    """The worker's own thread makes none: what the library needs one for runs in another thread."""
    jobs = [Queue("q", connection=client).enqueue(rq_jobs.has_a_hub) for _ in range(2)]
    assert start_worker("--burst", "q", worker_class=FORKING).wait() == 0
    assert [job.latest_result().return_value for job in jobs] == [False, False]


@pytest.mark.parametrize("worker_class", [FORKING, SIMPLE, GEVENT])
def test_a_job_held_too_long_is_failed_in_rqs_way(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """Its lock is still its own, so RQ may say so; it does not come back."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.sleep, 60)
    worker = start_worker("--burst", "q", worker_class=worker_class, ECHOMQ_MAX_HOLD_MS="1000")
    assert worker.wait() == 0
    assert job.get_status() == JobStatus.FAILED
    assert runs(client, job.id) == ["start"]
    assert not client.exists("emq:q:held", lock_key("q", job.id))


@pytest.mark.parametrize("worker_class", [FORKING, SIMPLE, GEVENT])
def test_jobs_run_unlocked_where_the_user_chose_that(
    worker_class: str, own_server: EmbeddedServer, start_worker: StartWorker
) -> None:
    """ECHOMQ_WHEN_UNREACHABLE=run, and Redis refuses scripts."""
    with redis.Redis.from_url(own_server.url) as client:
        worker = start_worker(
            "q",
            worker_class=worker_class,
            url=own_server.url,
            TEST_REDIS_URL=own_server.url,
            ECHOMQ_WHEN_UNREACHABLE="run",
        )
        until(lambda: client.scard("rq:workers") == 1)
        client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
        job = Queue("q", connection=client).enqueue(rq_jobs.sleep, 0.1)
        until(lambda: job.get_status() == JobStatus.FINISHED)
        client.execute_command("ACL", "SETUSER", "default", "+@all")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
