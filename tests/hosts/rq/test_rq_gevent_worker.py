"""GeventWorker: many jobs at once, each as it would be alone."""

from __future__ import annotations

import signal
import time

import gevent.event
import gevent.lock
import gevent.pool
import pytest
import redis
import rq_jobs
from conftest import StartWorker, overlapping, runs, until
from rq import Queue, Retry
from rq.command import send_shutdown_command, send_stop_job_command
from rq.job import Callback, JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.suspension import resume, suspend
from rq.worker import SimpleWorker
from test_rq_locks import GEVENT

from echomq_plugin.hosts.rq.taking import TakesJobs

LATE = "monkey-patched late"


def running(client: redis.Redis) -> int:
    return client.zcard("rq:wip:q")


@pytest.mark.parametrize("patched", [True, False], ids=["gevent.monkey", "-w alone"])
def test_jobs_run_side_by_side_and_each_ends_as_it_would_alone(
    patched: bool, client: redis.Redis, start_worker: StartWorker
) -> None:
    """Ten slots: a wait that runs into its own limit, a failure, and twenty that succeed."""
    queue = Queue("q", connection=client)
    late = queue.enqueue(rq_jobs.sleep, 30, job_timeout=2)
    failed = queue.enqueue(rq_jobs.fail)
    jobs = [queue.enqueue(rq_jobs.sleep, 0.3, job_timeout=100) for _ in range(20)]
    worker = start_worker("--burst", "q", worker_class=GEVENT, patched=patched, ECHOMQ_CONCURRENCY="10")
    assert worker.wait() == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in jobs)
    assert set(FailedJobRegistry(queue=queue).get_job_ids()) == {late.id, failed.id}
    assert "JobTimeoutException" in late.latest_result().exc_string
    assert "maximum timeout value (2 seconds)" in late.latest_result().exc_string
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0
    assert not client.exists("emq:q:held", queue.intermediate_queue_key)
    assert (LATE in worker.log()) is not patched


def test_nothing_is_taken_while_no_slot_is_free(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.wait_for_key, "go") for _ in range(7)]
    worker = start_worker("--burst", "q", worker_class=GEVENT, patched=True, ECHOMQ_CONCURRENCY="3")
    until(lambda: running(client) == 3)
    time.sleep(0.5)
    assert running(client) == 3
    assert client.llen(queue.key) == 4
    assert client.llen(queue.intermediate_queue_key) == 0
    client.set("go", 1)
    assert worker.wait() == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in jobs)


def noted(job: object, connection: redis.Redis) -> None:
    connection.set("stopped callback", job.id)


def test_stop_job_stops_one_of_many(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    jobs = [
        queue.enqueue(rq_jobs.wait_for_key, "go", on_stopped=Callback("test_rq_gevent_worker.noted")) for _ in range(5)
    ]
    worker = start_worker("--burst", "q", worker_class=GEVENT, patched=True)
    until(lambda: all(runs(client, job.id) == ["start"] for job in jobs))
    send_stop_job_command(client, jobs[3].id)
    until(lambda: jobs[3].get_status() == JobStatus.STOPPED)
    assert client.get("stopped callback") == jobs[3].id.encode()
    assert jobs[3].id in FailedJobRegistry(queue=queue)
    client.set("go", 1)
    assert worker.wait() == 0
    assert [job.get_status() for job in jobs].count(JobStatus.FINISHED) == 4
    assert runs(client, jobs[3].id) == ["start"]
    assert not client.exists("emq:q:held")


def test_a_jobs_next_run_is_known_to_the_worker_that_still_ends_the_first(
    client: redis.Redis, start_worker: StartWorker
) -> None:
    """The retry begins in one greenlet while another still ends the first run: it can be stopped all the same."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.fail_then_wait_for_key, "go", retry=Retry(max=1))
    worker = start_worker("q", worker_class="odd_workers.SlowToEnd", patched=True, ODD_WORKER="gevent")
    until(lambda: runs(client, job.id) == ["start", "end", "start"])
    time.sleep(1.5)  # the first run's greenlet has ended by now
    send_stop_job_command(client, job.id)
    until(lambda: job.get_status() == JobStatus.STOPPED)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert not client.exists("emq:q:held")


def test_a_worker_outlives_a_redis_that_does_not_say_whether_workers_are_suspended(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on asking for jobs, as RQ's own does."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.nothing)
    worker = TakesJobs([queue], connection=client)
    worker._free = gevent.lock.BoundedSemaphore(10)
    worker._jobs, worker._changed = gevent.pool.Group(), gevent.event.Event()
    answers = [redis.ConnectionError("refused"), redis.TimeoutError("no answer")]

    def check_for_suspension(*_: object) -> None:
        if answers:
            raise answers.pop()

    monkeypatch.setattr(SimpleWorker, "check_for_suspension", check_for_suspension)
    result = worker.dequeue_job_and_maintain_ttl(None)
    assert result is not None
    assert result[0].id == job.id
    assert not answers


def test_jobs_already_taken_are_run_though_workers_are_suspended(client: redis.Redis) -> None:
    """They have left their queue, and RQ fails there what waits for a minute."""
    queue = Queue("q", connection=client)
    ids = [queue.enqueue(rq_jobs.nothing).id for _ in range(3)]
    worker = TakesJobs([queue], connection=client)
    worker._free = gevent.lock.BoundedSemaphore(10)
    worker._jobs, worker._changed = gevent.pool.Group(), gevent.event.Event()
    first = worker.dequeue_job_and_maintain_ttl(None)
    suspend(client)
    taken = [first, worker.dequeue_job_and_maintain_ttl(None), worker.dequeue_job_and_maintain_ttl(None)]
    assert [result[0].id for result in taken if result is not None] == ids


@pytest.mark.parametrize("stops", [False, True], ids=["goes on", "stops"])
def test_jobs_are_not_stranded_by_an_answer_that_is_lost(
    stops: bool, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has moved them out of their queue, and the worker has not heard which: it asks again."""
    queue = Queue("q", connection=client)
    ids = [queue.enqueue(rq_jobs.nothing).id for _ in range(10)]
    worker = TakesJobs([queue], connection=client)
    worker._free = gevent.lock.BoundedSemaphore(10)
    worker._jobs, worker._changed = gevent.pool.Group(), gevent.event.Event()
    worker._take_ids(0)  # the script is known to the server
    evalsha, lost = client.evalsha, []

    def without_an_answer(*args: object) -> object:
        answer = evalsha(*args)
        if len(lost) < 2:
            lost.append(answer)
            raise redis.ConnectionError("no answer")
        return answer

    monkeypatch.setattr(client, "evalsha", without_an_answer)
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            worker._pop(None)
    assert lost == [[job_id.encode() for job_id in ids[:8]]] * 2
    assert client.llen(queue.intermediate_queue_key) == 8
    if stops:
        worker.put_back_taken()
        assert client.lrange(queue.key, 0, -1) == [job_id.encode() for job_id in ids]
        assert client.llen(queue.intermediate_queue_key) == 0
        assert not client.keys("rq:queue:q:*")  # no note of what was taken either
    else:
        taken = [worker._pop(None) for _ in ids]
        assert [result[0].id for result in taken if result is not None] == ids


FAULTS = {
    "before the start is written": 1,
    "when the start is written": 1,
    "before the end is written": 2,
    "when the end is written": 1,
}
"""Where Redis refuses a call, and how often the job runs to its end then."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_redis_error_ends_one_run_of_many(fault: str, client: redis.Redis, start_worker: StartWorker) -> None:
    """Its neighbours and the worker go on, and the job comes back by the sweep unless its end was written."""
    queue = Queue("q", connection=client)
    neighbours = [queue.enqueue(rq_jobs.wait_for_key, "go") for _ in range(3)]
    worker = start_worker("q", worker_class="odd_workers.Refused", patched=True, ODD_WORKER="gevent", FAULT_AT=fault)
    until(lambda: all(runs(client, job.id) == ["start"] for job in neighbours))
    faulty = queue.enqueue(rq_jobs.sleep, 0.1, job_id="faulty")
    until(lambda: client.exists("refused"))
    until(lambda: "ends this run of job faulty" in worker.log())
    if fault == "before the end is written":
        until(lambda: runs(client, "faulty") == ["start", "end"] * 2)
    else:
        until(lambda: faulty.get_status() == JobStatus.FINISHED)
    assert runs(client, "faulty") == ["start", "end"] * FAULTS[fault]
    assert not overlapping(client, "faulty")
    assert all(job.get_status() == JobStatus.STARTED for job in neighbours)
    client.set("go", 1)
    later = queue.enqueue(rq_jobs.nothing)
    until(lambda: all(job.get_status() == JobStatus.FINISHED for job in [*neighbours, later]))
    assert all(runs(client, job.id) == ["start", "end"] for job in neighbours)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_warm_shutdown_takes_no_more_and_waits_for_all(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.wait_for_key, "go") for _ in range(5)]
    worker = start_worker("q", worker_class=GEVENT, patched=True)
    until(lambda: running(client) == 5)
    send_shutdown_command(client, client.smembers("rq:workers").pop().decode().rpartition(":")[2])
    until(lambda: "warm shut down" in worker.log())
    time.sleep(1.2)  # a pop that was under way has ended
    more = queue.enqueue(rq_jobs.nothing)
    client.set("go", 1)
    assert worker.wait() == 0
    assert all(job.get_status() == JobStatus.FINISHED for job in jobs)
    assert client.lrange(queue.key, 0, -1) == [more.id.encode()]
    assert not client.scard("rq:workers")


def test_a_cold_shutdown_puts_every_job_back(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.wait_for_key, "go") for _ in range(5)]
    worker = start_worker("q", worker_class=GEVENT, patched=True)
    until(lambda: all(runs(client, job.id) == ["start"] for job in jobs))
    worker.signal(signal.SIGTERM)
    until(lambda: "warm shut down" in worker.log())
    time.sleep(1.1)  # RQ takes a second signal within a second for the same one
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert set(client.lrange(queue.key, 0, -1)) == {job.id.encode() for job in jobs}
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0
    assert client.zcard(FailedJobRegistry(queue=queue).key) == 0
    assert not client.exists("emq:q:held", "emq:q:stalled-count")


def test_max_jobs_are_run_and_no_more(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    for _ in range(12):
        queue.enqueue(rq_jobs.sleep, 0.2)
    assert start_worker("--max-jobs", "5", "q", worker_class=GEVENT, patched=True).wait() == 0
    assert client.zcard(FinishedJobRegistry(queue=queue).key) == 5
    assert client.llen(queue.key) == 7
    assert client.llen(queue.intermediate_queue_key) == 0


def test_a_suspended_worker_takes_nothing_and_its_jobs_go_on(client: redis.Redis, start_worker: StartWorker) -> None:
    queue = Queue("q", connection=client)
    first = queue.enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("q", worker_class=GEVENT, patched=True)
    until(lambda: runs(client, first.id) == ["start"])
    suspend(client)
    until(lambda: "suspended" in worker.log())
    second = queue.enqueue(rq_jobs.sleep, 0.1)
    client.set("go", 1)
    until(lambda: first.get_status() == JobStatus.FINISHED)
    assert second.get_status() == JobStatus.QUEUED
    resume(client)
    until(lambda: second.get_status() == JobStatus.FINISHED)


def test_scheduled_jobs_are_enqueued(client: redis.Redis, start_worker: StartWorker) -> None:
    from datetime import timedelta

    job = Queue("q", connection=client).enqueue_in(timedelta(seconds=1), rq_jobs.sleep, 0.1)
    worker = start_worker("--with-scheduler", "q", worker_class=GEVENT, patched=True)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_every_run_gets_heartbeats(client: redis.Redis, start_worker: StartWorker) -> None:
    """Longer than three times RQ's monitoring interval, and another worker's cleanup finds nothing abandoned."""
    queue = Queue("q", connection=client)
    jobs = [queue.enqueue(rq_jobs.wait_for_key, "go") for _ in range(4)]
    start_worker("--job-monitoring-interval", "1", "q", worker_class=GEVENT, patched=True)
    until(lambda: running(client) == 4)
    first = dict(client.zrange("rq:wip:q", 0, -1, withscores=True))
    until(lambda: all(score > first[name] + 2 for name, score in client.zrange("rq:wip:q", 0, -1, withscores=True)))
    StartedJobRegistry(queue=queue).cleanup()
    client.set("go", 1)
    until(lambda: all(job.get_status() == JobStatus.FINISHED for job in jobs))


@pytest.mark.parametrize(
    ("text", "why"),
    [*((text, "a whole number, 1 or more") for text in ("0", "-3", "many", "1.5", "²")), ("9" * 25, "at most")],
)
def test_a_concurrency_that_is_no_positive_number_is_refused(
    text: str, why: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    job = Queue("q", connection=client).enqueue(rq_jobs.nothing)
    worker = start_worker("--burst", "q", worker_class=GEVENT, patched=True, ECHOMQ_CONCURRENCY=text)
    assert worker.wait() != 0
    assert "ECHOMQ_CONCURRENCY" in worker.log()
    assert f"must be {why}" in worker.log()
    assert client.lrange("rq:queue:q", 0, -1) == [job.id.encode()]
    assert not client.scard("rq:workers")
