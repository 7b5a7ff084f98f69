"""Workers that die, locks that are lost, and a Redis that gives no answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import redis
import rq_jobs
from conftest import FAST, STALLED_INTERVAL, StartWorker, runs, until
from odd_workers import MONITORING_INTERVAL_S, RUN_S
from rq import Callback, Queue, Retry
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, StartedJobRegistry
from rq.worker import SimpleWorker
from test_rq_locks import FORKING, SIMPLE, WITH_WORK_HORSES, lock_key

from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.events import LostLock, StalledJob
from echomq_plugin.hosts.rq import LockedSimpleWorker, LockedWorker
from echomq_plugin.hosts.rq.runs import Run
from echomq_plugin.hosts.rq.stalled import payload_of


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not os.path.isdir("/proc/self")


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_killed_workers_job_runs_again_on_another(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """Whatever the job's timeout: four hours here. The work-horse dies with its worker, so no two runs overlap."""
    queue = Queue("q", connection=client)
    victim = start_worker("q", worker_class=worker_class)
    job = queue.enqueue(rq_jobs.sleep_first_time, 60, job_timeout=4 * 3600)
    until(lambda: runs(client, job.id) == ["start"])
    work_horse = int(client.get(f"pid:{job.id}"))
    start_worker("q", worker_class=worker_class)
    until(lambda: client.scard("rq:workers") == 2)
    victim.kill()
    until(lambda: runs(client, job.id)[:2] == ["start", "start"])
    if "linux" in os.uname().sysname.lower():
        assert not alive(work_horse)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    assert runs(client, job.id) == ["start", "start", "end"]
    until(lambda: not client.exists("emq:q:held", lock_key("q", job.id)))
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0
    assert client.zcard(FailedJobRegistry(queue=queue).key) == 0


def test_each_of_many_jobs_comes_back_once_however_many_workers_sweep(
    client: redis.Redis, start_worker: StartWorker
) -> None:
    queue = Queue("q", connection=client)
    victims = [start_worker("q") for _ in range(4)]
    jobs = [queue.enqueue(rq_jobs.sleep_first_time, 60) for _ in victims]
    until(lambda: all(runs(client, job.id) == ["start"] for job in jobs))
    for _ in range(3):
        start_worker("q")
    for victim in victims:
        victim.kill()
    until(lambda: all(job.get_status() == JobStatus.FINISHED for job in jobs))
    time.sleep(2 * STALLED_INTERVAL / 1000)  # two more rounds find nothing to do
    assert all(runs(client, job.id) == ["start", "start", "end"] for job in jobs)
    assert client.llen(queue.key) == 0


@pytest.mark.parametrize("retry", [None, Retry(max=5)], ids=["no retry", "retries left"])
def test_a_job_that_kills_its_workers_is_failed_with_a_message_that_says_why(
    retry: Retry | None, client: redis.Redis, start_worker: StartWorker
) -> None:
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.die, retry=retry)
    for count in range(1, 3):
        worker = start_worker("q", KILL_PPID="1")
        until(lambda worker=worker: worker.process.poll() is not None)
        assert len(runs(client, job.id)) == count
    start_worker("q", KILL_PPID="1")
    until(lambda: job.get_status() == JobStatus.FAILED)
    assert job.id in FailedJobRegistry(queue=queue)
    why = job.latest_result().exc_string
    assert "2 workers died while they ran this job" in why
    until(lambda: not client.exists("emq:q:held"))
    assert len(runs(client, job.id)) == 2
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0


@pytest.mark.parametrize("worker_class", WITH_WORK_HORSES)
def test_a_worker_whose_lock_is_taken_stops_its_job_and_writes_nothing(
    worker_class: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    """The job's hash is the new owner's, and so are its lock and entry. The worker goes on with the next job."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.sleep, 60)
    worker = start_worker("q", worker_class=worker_class)
    until(lambda: runs(client, job.id) == ["start"])
    before = client.hgetall(job.key)
    client.hset("emq:q:held", job.id, "thief")
    client.set(lock_key("q", job.id), "thief", px=60_000)
    until(lambda: client.zcard(StartedJobRegistry(queue=queue).key) == 0)
    follower = queue.enqueue(rq_jobs.sleep, 0.1)
    until(lambda: follower.get_status() == JobStatus.FINISHED)
    assert runs(client, job.id) == ["start"]
    assert client.hgetall(job.key) == before
    assert client.get(lock_key("q", job.id)) == b"thief"
    assert client.hget("emq:q:held", job.id) == b"thief"
    assert client.zcard(FailedJobRegistry(queue=queue).key) == 0
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0
    assert "lock lost" in worker.log()
    assert f"job {job.id} lost its lock, nothing is written for this run" in worker.log()
    assert "terminated unexpectedly" not in worker.log()
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_job_whose_lock_vanishes_runs_again(client: redis.Redis, start_worker: StartWorker) -> None:
    """Its work-horse is killed first."""
    queue = Queue("q", connection=client)
    start_worker("q")
    job = queue.enqueue(rq_jobs.sleep_first_time, 60)
    until(lambda: runs(client, job.id) == ["start"])
    work_horse = int(client.get(f"pid:{job.id}"))
    client.delete(lock_key("q", job.id))
    until(lambda: runs(client, job.id)[:2] == ["start", "start"])
    assert not alive(work_horse)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    assert runs(client, job.id) == ["start", "start", "end"]


def test_a_long_job_is_called_abandoned_by_nobody(client: redis.Redis, start_worker: StartWorker) -> None:
    """It takes four of RQ's monitoring intervals, while other workers sweep RQ's registries and ours."""
    queue = Queue("q", connection=client)
    interval = ["--job-monitoring-interval", str(MONITORING_INTERVAL_S)]
    job = queue.enqueue(rq_jobs.wait_for_key, "go", job_timeout=4 * 3600)
    workers = [start_worker(*interval, "q")]
    until(lambda: runs(client, job.id) == ["start"])
    token, end = client.get(lock_key("q", job.id)), time.monotonic() + RUN_S
    while time.monotonic() < end:
        workers.append(start_worker("--burst", "q", worker_class="odd_workers.CleansAhead"))
        assert workers[-1].wait() == 0
        assert client.get(lock_key("q", job.id)) == token
        assert job.get_status(refresh=True) == JobStatus.STARTED
        time.sleep(0.5)
    start_worker("--burst", "q", worker_class="odd_workers.CleansAhead").wait()
    client.set("go", 1)
    until(lambda: job.get_status() == JobStatus.FINISHED)
    assert runs(client, job.id) == ["start", "end"]
    assert client.zcard(FailedJobRegistry(queue=queue).key) == 0
    assert not client.exists("emq:q:stalled-count", "emq:q:held-claim")
    for worker in workers:
        assert "abandoned" not in worker.log().lower()
        assert job.id not in worker.log() or worker is workers[0]


def test_news_of_a_lost_lock_that_comes_late_kills_no_other_jobs_work_horse(client: redis.Redis) -> None:
    worker = LockedWorker([Queue("q", connection=client)], connection=client)
    ended, current = (Run(name, f"emq:q:{name}:lock", "token", 1_500, os.getpid()) for name in ("ended", "current"))
    worker.runs["current"] = current
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as horse:
        worker._horse_pid = horse.pid
        worker.cancel_run(ended, LostLock("ended", "token", "missing", 1_000))
        assert horse.stdin is not None
        horse.stdin.write(b"\n")
        horse.stdin.close()
        assert horse.wait(30) == 0
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as horse:
        worker._horse_pid = horse.pid
        worker.cancel_run(current, LostLock("current", "token", "missing", 1_000))
        assert horse.wait(30) == -signal.SIGKILL


def test_a_work_horse_that_finds_its_lock_gone_writes_nothing(client: redis.Redis, start_worker: StartWorker) -> None:
    """Its frozen worker cannot kill it: it asks before it writes."""
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.wait_for_key, "go")
    worker = start_worker("q")
    until(lambda: runs(client, job.id) == ["start"])
    worker.signal(signal.SIGSTOP)
    until(lambda: not client.exists(lock_key("q", job.id)))
    client.set(lock_key("q", job.id), "thief", px=60_000)
    client.hset("emq:q:held", job.id, "thief")
    before = {name: value for name, value in client.hgetall(job.key).items() if name != b"last_heartbeat"}
    client.set("go", 1)
    until(lambda: not alive(int(client.get(f"pid:{job.id}"))))
    assert runs(client, job.id) == ["start", "end"]
    worker.signal(signal.SIGCONT)
    follower = queue.enqueue(rq_jobs.sleep, 0.1)
    until(lambda: follower.get_status() == JobStatus.FINISHED)
    after = {name: value for name, value in client.hgetall(job.key).items() if name != b"last_heartbeat"}
    assert after == before
    assert client.get(lock_key("q", job.id)) == b"thief"
    assert f"job {job.id} lost its lock, nothing is written for this run" in worker.log()
    assert "terminated unexpectedly" not in worker.log()
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0


@pytest.mark.parametrize("queues", [["q"], ["q", "other"]], ids=["one queue", "two queues"])
@pytest.mark.parametrize("worker_class", [FORKING, SIMPLE])
def test_without_an_answer_at_its_start_a_job_goes_back_to_its_queue(
    worker_class: str, queues: list[str], own_server: EmbeddedServer, start_worker: StartWorker
) -> None:
    with redis.Redis.from_url(own_server.url) as client:
        queue = Queue("q", connection=client)
        worker = start_worker(*queues, worker_class=worker_class, url=own_server.url, TEST_REDIS_URL=own_server.url)
        until(lambda: client.scard("rq:workers") == 1 and client.scard("emq:queues"))
        client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
        job = queue.enqueue(rq_jobs.sleep, 0.1)
        until(lambda: "nobody knows who holds" in worker.log())
        until(lambda: client.lrange(queue.key, 0, -1) == [job.id.encode()])
        assert job.get_status() == JobStatus.QUEUED
        assert runs(client, job.id) == []
        client.execute_command("ACL", "SETUSER", "default", "+@all")
        until(lambda: job.get_status() == JobStatus.FINISHED)
        assert runs(client, job.id) == ["start", "end"]
        assert client.llen(queue.intermediate_queue_key) == 0
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.fixture
def hooks(client: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    """The hooks of a worker that does not run, called as the recovery lane calls them."""
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    worker = LockedSimpleWorker([Queue("q", connection=client)], connection=client)
    return worker.lock_plugin.pm.hook


def started_and_dead(client: redis.Redis, queue: Queue, **options: object) -> tuple[Job, StalledJob]:
    """A job as a dead worker leaves it: started, with a record of its run, in no queue."""
    job = queue.enqueue(rq_jobs.nothing, **options)
    client.delete(queue.key)
    worker = LockedSimpleWorker([queue], connection=client)
    worker.register_birth()
    worker.prepare_execution(job)
    worker.prepare_job_execution(job)
    return job, StalledJob("q", job.id, payload_of(job, queue), "", 1, worker="host:1")


def test_putting_back_twice_puts_back_once(client: redis.Redis, hooks) -> None:
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert client.lrange(queue.key, 0, -1) == [job.id.encode()]
    assert job.get_status() == JobStatus.QUEUED
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0


def test_a_stalled_job_goes_before_all_that_waits(client: redis.Redis, hooks) -> None:
    """Its turn had come."""
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    waiting = queue.enqueue(rq_jobs.nothing)
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert client.lrange(queue.key, 0, -1) == [job.id.encode(), waiting.id.encode()]


def test_a_run_whose_own_keys_ran_out_leaves_no_record_behind(client: redis.Redis, hooks) -> None:
    """RQ cannot fetch it any more, and its own sweep would fail the job that runs again."""
    queue = Queue("q", connection=client)
    _, stalled = started_and_dead(client, queue)
    for key in client.keys("rq:execution*"):
        client.delete(key)
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 0


def test_a_job_that_rqs_own_sweep_failed_first_comes_back_all_the_same(client: redis.Redis, hooks) -> None:
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    StartedJobRegistry(queue=queue).cleanup(timestamp=time.time() + 10_000)
    assert job.get_status() == JobStatus.FAILED
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert job.get_status() == JobStatus.QUEUED
    assert client.zcard(FailedJobRegistry(queue=queue).key) == 0
    assert client.ttl(job.key) == -1


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED, JobStatus.SCHEDULED])
def test_a_run_that_ended_before_its_worker_died_is_left_as_it_is(
    status: JobStatus, client: redis.Redis, hooks
) -> None:
    """Its worker died between RQ's write and the release."""
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    job.set_status(status)
    assert hooks.echomq_job_stalled(job=stalled) is True
    hooks.echomq_job_abandoned(job=stalled)
    assert client.llen(queue.key) == 0
    assert job.get_status() == status


def test_a_job_that_has_started_again_is_neither_put_back_nor_failed(client: redis.Redis, hooks) -> None:
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    client.set(lock_key("q", job.id), "another run", px=60_000)
    assert hooks.echomq_job_stalled(job=stalled) is True
    hooks.echomq_job_abandoned(job=stalled)
    assert client.llen(queue.key) == 0
    assert job.get_status() == JobStatus.STARTED
    assert client.zcard(StartedJobRegistry(queue=queue).key) == 1


def test_a_job_without_a_hash_is_not_asked_for_again(client: redis.Redis, hooks) -> None:
    queue = Queue("q", connection=client)
    job, stalled = started_and_dead(client, queue)
    client.delete(job.key)
    assert hooks.echomq_job_stalled(job=stalled) is True
    assert client.llen(queue.key) == 0


@pytest.mark.parametrize(
    "payload",
    [None, "", "42", '{"host": "huey"}', b"\x00", '{"host": "rq", "queue": "q", "queue_key": "x", "job_key": "y"}'],
    ids=["none", "empty", "number", "another host", "bytes", "another namespace"],
)
def test_a_job_of_another_host_or_app_is_left_to_its_own_workers(
    payload: str | bytes | None, client: redis.Redis, hooks
) -> None:
    stalled = StalledJob("q", "42", payload, "", 1)
    assert hooks.echomq_job_stalled(job=stalled) is None
    hooks.echomq_job_abandoned(job=stalled)
    assert client.keys("rq:*") == []


def told(job: Job, connection: redis.Redis, kind: type, error: Exception, trace: object) -> None:
    connection.set("told", str(error))


def test_an_abandoned_jobs_failure_callback_is_called(client: redis.Redis, hooks) -> None:
    queue = Queue("q", connection=client)
    _, stalled = started_and_dead(client, queue, on_failure=Callback(told))
    hooks.echomq_job_abandoned(job=stalled)
    assert b"Given up by echomq-plugin" in client.get("told")


@pytest.mark.parametrize("step", ["prepare_execution", "perform_job"])
def test_a_run_that_never_began_leaves_its_entry_to_the_sweep(
    step: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its delivery has left the queue, and the job's status says that it waits there."""
    for name, value in FAST.items():
        monkeypatch.setenv(name, value)
    queue = Queue("q", connection=client)
    job = queue.enqueue(rq_jobs.nothing)
    client.delete(queue.key)
    worker = LockedSimpleWorker([queue], connection=client)
    worker.register_birth()
    monkeypatch.setattr(SimpleWorker, step, fails_to_begin)
    with pytest.raises(redis.ConnectionError):
        worker.execute_job(Job.fetch(job.id, connection=client), queue)
    worker.lock_plugin.stop(0)
    assert not client.exists(lock_key("q", job.id))
    assert client.hexists("emq:q:held", job.id)
    stalled = StalledJob("q", job.id, payload_of(job, queue), "", 1)
    assert worker.lock_plugin.pm.hook.echomq_job_stalled(job=stalled) is True
    assert client.lrange(queue.key, 0, -1) == [job.id.encode()]


def fails_to_begin(*_: object, **__: object) -> None:
    raise redis.ConnectionError("on purpose")
