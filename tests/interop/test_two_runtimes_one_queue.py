"""Node takes and finishes jobs, Python keeps their locks, and each recovers what is its own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pluggy
import pytest
import redis

from echomq_plugin import LockOptions, StalledJob, attach, hookimpl_for
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import InvalidIdError
from interop.peers import NodePeer, RenewingProcess, wait_until

LOCK_DURATION = 2_000
STALLED_INTERVAL = 400
PREFIXES = ("emq", "bull")

Renewer = Callable[..., RenewingProcess]


@dataclass
class Queue:
    """One queue, with two Node workers: ``taker`` fetches by hand, ``checker`` looks for stalled jobs."""

    node: NodePeer
    prefix: str
    name: str = "videos"

    def __post_init__(self) -> None:
        options = {"lockDuration": LOCK_DURATION, "stalledInterval": STALLED_INTERVAL, "maxStalledCount": 3}
        for worker in ("taker", "checker"):
            self.node("worker", name=self.worker(worker), queue=self.name, prefix=self.prefix, options=options)

    def worker(self, name: str) -> str:
        """Name a worker apart from the other queue's."""
        return f"{name} of {self.prefix}"

    def take(self, token: str, *, add: bool = True) -> str:
        """Have Node take a job, which is put in the queue first, and return its id."""
        if add:
            self.node("add", queue=self.name, prefix=self.prefix)
        taken = self.node("take", name=self.worker("taker"), token=token)
        assert taken["token"] == token
        return str(taken["id"])

    def complete(self, job_id: str, token: str) -> None:
        """Have Node finish a job that it took."""
        self.node("complete", name=self.worker("taker"), id=job_id, token=token)

    def job(self, job_id: str) -> dict[str, Any]:
        """Return what Node knows of a job."""
        job: dict[str, Any] = self.node("job", queue=self.name, prefix=self.prefix, id=job_id)
        return job

    def check(self) -> None:
        """Have Node look for stalled jobs from now on."""
        self.node("check", name=self.worker("checker"))

    def stalled(self) -> list[str]:
        """Return the ids that Node's checker has called stalled, each as often as it did."""
        ids: list[str] = self.node("seen", name=self.worker("checker"))["stalled"]
        return ids

    def lock(self, job_id: str) -> str:
        """Return a job's lock key."""
        return f"{self.prefix}:{self.name}:{job_id}:lock"


def now_ms(client: redis.Redis) -> int:
    """Return the server's time, in ms."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def test_a_job_that_node_took_lives_as_long_as_python_renews_it_and_not_longer(
    node: NodePeer, client: redis.Redis, renewing_process: Renewer
) -> None:
    """Five lock durations under Node's checker, under both prefixes; then one job is completed, and one is left."""
    queues = [Queue(node, prefix) for prefix in PREFIXES]
    renewers = [renewing_process(queue.name, queue.prefix, LOCK_DURATION) for queue in queues]
    for renewer in renewers:
        renewer.tell(untrack="nothing")  # it has started
    jobs = []
    for queue, renewer in zip(queues, renewers, strict=True):
        for token in ("first token", "second token"):
            job_id = queue.take(token)
            renewer.tell(track=[job_id, token])
            jobs.append((queue, job_id, token))
        queue.check()
    started = now_ms(client)

    def five_lock_durations_passed() -> bool:
        for queue, job_id, token in jobs:
            assert client.get(queue.lock(job_id)) == token.encode()
            assert client.pttl(queue.lock(job_id)) <= LOCK_DURATION
        return now_ms(client) - started > 5 * LOCK_DURATION

    wait_until(five_lock_durations_passed, "five lock durations passed")
    for queue, renewer in zip(queues, renewers, strict=True):
        (done, done_token), (left, _) = [(job_id, token) for of, job_id, token in jobs if of is queue]
        assert queue.stalled() == []
        renewer.tell(untrack=done)
        queue.complete(done, done_token)
        finished = queue.job(done)
        assert (finished["state"], finished["stalledCounter"], finished["attemptsStarted"]) == ("completed", 0, 1)
        assert renewer.reports("lost") == []
        renewer.process.kill()
        wait_until(lambda queue=queue: queue.stalled(), "Node's checker found the job that nobody renews")
        assert queue.stalled() == [left]
        assert queue.take("third token", add=False) == left
        queue.complete(left, "third token")
        assert queue.job(left)["state"] == "completed"


def test_two_runtimes_may_renew_one_lock_together(
    node: NodePeer, client: redis.Redis, renewing_process: Renewer
) -> None:
    """A Node worker that renews by itself, beside ours with the same token: neither calls the lock lost."""
    queue = Queue(node, "bull")
    renewer = renewing_process(queue.name, queue.prefix, LOCK_DURATION)
    renewer.tell(untrack="nothing")  # it has started
    options = {"lockDuration": LOCK_DURATION, "stalledInterval": STALLED_INTERVAL}
    node("worker", name="runs", queue=queue.name, prefix=queue.prefix, runs=2 * LOCK_DURATION, options=options)
    job_id = node("add", queue=queue.name, prefix=queue.prefix)
    token = wait_until(lambda: client.get(queue.lock(job_id)), "Node took the job")
    renewer.tell(track=[job_id, token.decode()])
    wait_until(lambda: renewer.reports("renewed").count([job_id]) >= 3, "Python renewed, beside Node")
    renewer.tell(untrack=job_id)

    wait_until(lambda: node("seen", name="runs")["completed"], "Node completed the job")

    seen = node("seen", name="runs")
    assert seen == {"completed": [job_id], "stalled": [], "failed": [], "lockRenewalFailed": [], "error": []}
    assert renewer.reports("lost") == []


def test_jobs_taken_by_the_python_package_outlive_nodes_checks_as_long_as_a_gevent_worker_renews_them(
    node: NodePeer, client: redis.Redis, renewing_process: Renewer, bullmq_python: object
) -> None:
    """Five lock durations, under both prefixes; then two jobs are completed, and one is left to Node."""
    queues = [Queue(node, prefix) for prefix in PREFIXES]
    workers = [renewing_process(queue.name, queue.prefix, LOCK_DURATION) for queue in queues]
    taken: list[list[str]] = []
    for queue, worker in zip(queues, workers, strict=True):
        ids = [node("add", queue=queue.name, prefix=queue.prefix) for _ in range(3)]
        assert [worker.tell(take=f"python's {job_id}") for job_id in ids] == ids
        taken.append(ids)
        queue.check()
    started = now_ms(client)

    def five_lock_durations_passed() -> bool:
        for queue, ids in zip(queues, taken, strict=True):
            for job_id in ids:
                assert client.get(queue.lock(job_id)) == f"python's {job_id}".encode()
        return now_ms(client) - started > 5 * LOCK_DURATION

    wait_until(five_lock_durations_passed, "five lock durations passed")
    for queue, worker, (*done, left) in zip(queues, workers, taken, strict=True):
        assert queue.stalled() == []
        for job_id in done:
            worker.tell(complete=[job_id, f"python's {job_id}"])
            finished = queue.job(job_id)
            assert (finished["state"], finished["stalledCounter"], finished["attemptsStarted"]) == ("completed", 0, 1)
        assert worker.reports("lost") == []
        worker.process.kill()
        wait_until(lambda queue=queue: queue.stalled(), "Node's checker found the job that nobody renews")
        assert queue.stalled() == [left]


def test_a_job_that_node_took_over_is_reported_taken_once_and_its_new_lock_is_left_alone(
    node: NodePeer, client: redis.Redis, renewing_process: Renewer
) -> None:
    """Python stops for longer than the lock lives; Node's checker recovers the job, and Node takes it again."""
    queues = [Queue(node, prefix) for prefix in PREFIXES]
    renewers = [renewing_process(queue.name, queue.prefix, LOCK_DURATION) for queue in queues]
    for renewer in renewers:
        renewer.tell(untrack="nothing")  # it has started
    ids = []
    for queue, renewer in zip(queues, renewers, strict=True):
        job_id = queue.take("first token")
        ids.append(job_id)
        renewer.tell(start=[job_id, "first token"])
        wait_until(lambda renewer=renewer, job_id=job_id: [job_id] in renewer.reports("renewed"), "Python renewed")
        queue.check()
    for renewer in renewers:
        renewer.process.send_signal(signal.SIGSTOP)
    for queue, job_id in zip(queues, ids, strict=True):
        wait_until(lambda queue=queue: queue.stalled(), "Node's checker found the job")
        assert queue.take("second token", add=False) == job_id
        client.pexpire(queue.lock(job_id), 100 * LOCK_DURATION)  # Node's own renewal is not what this is about

    for queue, renewer, job_id in zip(queues, renewers, ids, strict=True):
        renewer.process.send_signal(signal.SIGCONT)
        wait_until(lambda renewer=renewer: renewer.reports("lost"), "Python reported the loss")
        # Once: another job is renewed twice by then, and the lost one is not heard of again.
        client.set(queue.lock("another"), "its token", px=100 * LOCK_DURATION)
        renewer.tell(start=["another", "its token"])
        wait_until(lambda renewer=renewer: renewer.reports("renewed").count(["another"]) >= 2, "Python renewed on")
        assert renewer.reports("lost") == [[[job_id, "first token", "taken"]]]

        assert renewer.tell(finish=job_id) == "LOST"
        assert client.get(queue.lock(job_id)) == b"second token"
        assert client.pttl(queue.lock(job_id)) > 10 * LOCK_DURATION
        with pytest.raises(RuntimeError, match="Lock mismatch"):
            queue.complete(job_id, "first token")
        queue.complete(job_id, "second token")
        assert queue.job(job_id)["state"] == "completed"


hookimpl = hookimpl_for(pluggy.PluginManager("interop"))


class Host:
    """A host with nothing but a memory: every stalled job counts as put back."""

    def __init__(self) -> None:
        self.put_back: list[str] = []
        self.failed_checks: list[BaseException] = []

    @hookimpl
    def echomq_job_stalled(self, job: StalledJob) -> bool:
        self.put_back.append(job.job_id)
        return True

    @hookimpl
    def echomq_check_failed(self, queue: str | None, error: BaseException, retry_in_ms: int) -> None:
        self.failed_checks.append(error)


@pytest.fixture(params=PREFIXES)
def sweeping(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[tuple[str, Host]]:
    """A worker of ours that sweeps the queue ``videos``: the prefix, and the host it puts jobs back through."""
    pm = pluggy.PluginManager("interop")
    host = Host()
    pm.register(host)
    options = LockOptions(prefix=request.param, lock_duration=LOCK_DURATION, stalled_interval=2 * STALLED_INTERVAL)
    plugin = attach(pm, server.url, "videos", options)
    plugin.start()
    yield request.param, host
    plugin.stop(timeout_ms=0)


def test_both_checkers_share_a_queue_and_each_recovers_its_own_jobs(
    node: NodePeer, client: redis.Redis, renewing_process: Renewer, sweeping: tuple[str, Host]
) -> None:
    """A job of Node's and one of ours lose their workers together, twice; neither checker keeps the other waiting."""
    prefix, host = sweeping
    queue = Queue(node, prefix)
    queue.check()
    base = f"{prefix}:{queue.name}:"
    wait_until(lambda: client.exists(base + "stalled-check", base + "held-check") == 2, "both checkers had a pass")

    theirs = []
    for death in (1, 2):
        worker = renewing_process(queue.name, prefix, LOCK_DURATION)
        worker.tell(untrack="nothing")  # it has started
        worker.tell(start=[f"ours {death}", None])
        theirs.append(queue.take(f"token {death}"))
        worker.process.kill()
        wait_until(lambda death=death: len(queue.stalled()) == death, "Node recovered its job")
        wait_until(lambda death=death: len(host.put_back) == death, "we recovered ours")
        queue.complete(queue.take("later", add=False), "later")

    assert queue.stalled() == theirs
    assert host.put_back == ["ours 1", "ours 2"]
    assert host.failed_checks == []
    for job_id in theirs:
        assert queue.job(job_id)["state"] == "completed"


def test_a_node_job_that_is_called_like_a_key_of_ours_is_neither_invented_nor_overwritten(
    node: NodePeer, client: redis.Redis, sweeping: tuple[str, Host]
) -> None:
    """BullMQ keeps the job "held" under the key where our entries would be: its fields are no entries."""
    prefix, host = sweeping
    queue = Queue(node, prefix)
    node("add", queue=queue.name, prefix=prefix, id="held")
    before = client.hgetall(f"{prefix}:{queue.name}:held")
    assert before

    for _ in range(4):
        client.delete(f"{prefix}:{queue.name}:held-check")
        wait_until(lambda: client.exists(f"{prefix}:{queue.name}:held-check"), "we had a pass")

    assert client.hgetall(f"{prefix}:{queue.name}:held") == before
    assert host.put_back == []
    assert host.failed_checks == []


def test_a_node_job_that_is_called_like_our_check_stops_our_passes_loudly(
    node: NodePeer, client: redis.Redis, sweeping: tuple[str, Host]
) -> None:
    """The job's data is not overwritten; the report says why there is no pass."""
    prefix, host = sweeping
    queue = Queue(node, prefix)
    key = f"{prefix}:{queue.name}:held-check"
    wait_until(lambda: client.delete(key) and node("add", queue=queue.name, prefix=prefix, id="held-check"), "it is in")
    wait_until(lambda: client.type(key) == b"hash" or not client.delete(key), "Node won the key")
    before = client.hgetall(key)

    wait_until(lambda: host.failed_checks, "we reported that there is no pass")

    assert "WRONGTYPE" in str(host.failed_checks[0])
    assert client.hgetall(key) == before


def test_the_plugin_refuses_a_given_job_that_is_called_like_a_key_of_ours(server: EmbeddedServer) -> None:
    """Whoever hands over such a job hears of it before it does harm."""
    pm = pluggy.PluginManager("interop")
    plugin = attach(pm, server.url, "videos", LockOptions())
    for name in ("held", "held-data", "held-claim", "held-seen", "stalled-count", "held-check", "fence"):
        with pytest.raises(InvalidIdError, match="another id"):
            plugin.job_start("videos", name, token="Node's")
