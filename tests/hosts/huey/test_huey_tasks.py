"""What lock_tasks does with single tasks: they are executed in this process."""

from __future__ import annotations

import logging
import time
from datetime import timedelta

import gevent
import pluggy
import pytest
from gevent import monkey
from huey import FileHuey, MemoryHuey, PriorityRedisHuey, RedisHuey, SqliteHuey, signals
from huey import __version__ as huey_version
from huey.exceptions import CancelExecution, RetryTask, TaskException
from huey.storage import PriorityRedisStorage, RedisStorage
from redis.exceptions import ConnectionError as RedisConnectionError

from echomq_plugin import Lock, LockOptions, StalledJob, hookimpl_for
from echomq_plugin.errors import HostSetupError
from echomq_plugin.hosts.huey import ReliableRedisStorage, lock_tasks
from echomq_plugin.keys import QueueKeys

OPTIONS = LockOptions(lock_duration=3_000, stalled_interval=1_000, denied_pause_ms=50)
KEYS = QueueKeys("emq", "huey.app")
IS_OLD = huey_version.startswith("2.")
if not IS_OLD:
    from huey.exceptions import TaskTimeout


@pytest.fixture(params=[RedisStorage, ReliableRedisStorage], ids=["plain", "reliable"])
def huey(request, server, client):
    instance = RedisHuey("app", storage_class=request.param, url=server.url, blocking=False, utc=True)
    plugin = lock_tasks(instance, options=OPTIONS)
    yield instance
    plugin.stop(timeout_ms=1_000)
    instance.storage.pool.disconnect()


def run_next(huey):
    task = huey.dequeue()
    assert task is not None
    return huey.execute(task)


def traces(client):
    """All that a task which has ended must not leave."""
    return (
        client.keys("emq:*:lock") + list(client.hgetall(KEYS.held)) + client.lrange("huey.redis.app:processing", 0, -1)
    )


def held(client, task_id):
    return client.hget(KEYS.held, task_id)


def make_due(client):
    """Let the time of all scheduled tasks come."""
    for item in client.zrange("huey.schedule.app", 0, -1):
        client.zadd("huey.schedule.app", {item: 0})


def scheduled_again(huey, client):
    make_due(client)
    later = huey._get_timestamp() + timedelta(hours=1)
    for task in huey.read_schedule(later):
        task.eta = None
        huey.enqueue(task)


def test_a_task_runs_under_its_lock(huey, client):
    """Lock and entry while it runs, nothing afterwards."""
    seen = []

    @huey.task(context=True)
    def work(task=None):
        seen.append((held(client, task.id), client.get(KEYS.lock(task.id))))
        return "done"

    result = work()
    assert run_next(huey) == "done"
    assert result.get() == "done"
    assert seen[0][0] is not None
    assert seen[0][0] == seen[0][1]
    assert traces(client) == []


def test_the_lock_goes_after_huey_has_enqueued_the_retry(server, client):
    """The task is in the queue again before its lock is given back; its count stays."""
    pm = pluggy.PluginManager("mine")
    outcomes = []

    class Watch:
        @hookimpl_for(pm)(wrapper=True)
        def echomq_job_finish(self, lock, outcome):
            outcomes.append((outcome, instance.pending_count()))
            return (yield)

    pm.register(Watch())
    instance = RedisHuey("app", url=server.url, blocking=False)
    plugin = lock_tasks(instance, options=OPTIONS, pm=pm)

    @instance.task(retries=1)
    def work():
        raise ValueError("as planned")

    work()
    run_next(instance)
    run_next(instance)
    assert outcomes == [("retry", 1), ("failed", 0)]
    assert traces(client) == []
    plugin.stop(timeout_ms=1_000)
    instance.storage.pool.disconnect()


def test_a_retry_without_delay_that_comes_too_early_is_run_later(huey, client):
    """A retry that looks like its first delivery byte by byte is not dropped while the first run still has the lock."""
    runs = []

    @huey.task()
    def work():
        runs.append(1)
        if len(runs) == 1:
            raise RetryTask("at once")

    task = work.s()
    huey.enqueue(task)
    lock = lock_tasks(huey).job_start(KEYS.queue, task.id)
    run_next(huey)
    assert runs == []
    assert huey.scheduled_count() == 1
    lock_tasks(huey).job_finish(lock, "completed")
    scheduled_again(huey, client)
    run_next(huey)
    run_next(huey)
    assert len(runs) == 2
    assert traces(client) == []


def test_a_denied_task_is_put_back_and_nobody_is_told_that_it_was_cancelled(huey, client):
    """Its own signals and results are as if it had not been taken."""
    told = []
    huey.signal()(lambda signal, task, *_: told.append(signal))

    @huey.task()
    def work():
        return "done"

    result = work()
    client.set(KEYS.lock(result.id), "somebody-else")
    assert run_next(huey) is None
    assert signals.SIGNAL_CANCELED not in told
    assert huey.scheduled_count() == 1
    assert result.get() is None
    client.delete(KEYS.lock(result.id))
    scheduled_again(huey, client)
    run_next(huey)
    assert result.get() == "done"
    assert traces(client) == []


def test_a_task_does_not_run_when_redis_refuses_its_lock(huey, client):
    """Trouble at start: the task is scheduled again, and never runs unlocked."""
    runs = []

    @huey.task()
    def work():
        runs.append(1)

    work()
    client.set(KEYS.held, "not a hash")
    run_next(huey)
    assert runs == []
    assert huey.scheduled_count() == 1
    client.delete(KEYS.held)
    until = time.monotonic() + 20
    while not runs:  # what was taken half is given up first
        assert time.monotonic() < until
        scheduled_again(huey, client)
        run_next(huey)
        time.sleep(0.05)
    assert runs == [1]


if not IS_OLD:  # chords came with Huey 3

    def test_a_denied_chord_member_does_not_end_its_chord(huey, client):
        """Huey counts a cancelled member as done: a member that is only put back is not cancelled."""
        from huey.api import chord

        results = []

        @huey.task()
        def member(number):
            return number

        @huey.task()
        def collect(values):
            results.append(values)

        tasks = [member.s(1), member.s(2)]
        huey.enqueue(chord(tasks, collect.s()))
        client.set(KEYS.lock(tasks[0].id), "somebody-else")
        run_next(huey)
        run_next(huey)
        assert huey.pending_count() == 0
        client.delete(KEYS.lock(tasks[0].id))
        scheduled_again(huey, client)
        run_next(huey)
        run_next(huey)
        assert results == [[1, 2]]
        assert traces(client) == []


def test_pipelines_periodic_tasks_and_huey_locks_go_on_working(huey, client):
    """What Huey composes from tasks is as without our locks."""

    @huey.task()
    def add(a, b):
        return a + b

    ran = []

    @huey.periodic_task(lambda _: True)
    @huey.lock_task("mine")
    def every_minute():
        ran.append(1)

    pipe = huey.enqueue(add.s(1, 2).then(add, 3).then(add, 4))
    for _ in range(3):
        run_next(huey)
    assert [result.get() for result in pipe] == [3, 6, 10]
    for task in huey.read_periodic(None):
        huey.enqueue(task)
    run_next(huey)
    assert ran == [1]
    with huey.lock_task("mine"):
        huey.enqueue(every_minute.s())
        run_next(huey)
    assert ran == [1]
    assert traces(client) == []


def test_a_run_that_lost_its_lock_writes_nothing(huey, client):
    """Neither result, nor error, nor retry, nor the next task: and the new owner's lock and entry stay."""
    told = []

    @huey.task(retries=3, context=True)
    def lose(fails, task=None):
        client.set(KEYS.lock(task.id), "somebody-else")
        client.hset(KEYS.held, task.id, "somebody-else")
        if fails:
            raise ValueError("too late")
        return "too late"

    @huey.task()
    def following(value):
        raise AssertionError("must not run")

    for fails in (False, True):
        task = lose.s(fails).then(following)
        huey.enqueue(task)
        huey.signal(signals.SIGNAL_COMPLETE, signals.SIGNAL_ERROR)(lambda signal, task, *_: told.append(signal))
        assert run_next(huey) is None
        assert huey.pending_count() == 0
        assert huey.scheduled_count() == 0
        assert huey.get_raw(task.id, peek=True) is not None  # EmptyData, not None
        assert huey.result_count() == 0
        assert held(client, task.id) == b"somebody-else"
        assert client.get(KEYS.lock(task.id)) == b"somebody-else"
    assert told == []


def test_a_run_that_is_interrupted_is_put_back(huey, client):
    """KeyboardInterrupt is how Huey ends a worker in the middle of a task: it forgets the task, we do not."""
    runs = []

    @huey.task()
    def work():
        runs.append(1)
        if len(runs) == 1:
            raise KeyboardInterrupt

    result = work()
    with pytest.raises(KeyboardInterrupt):  # the worker takes nothing more
        run_next(huey)
    if isinstance(huey.storage, ReliableRedisStorage):
        assert huey.pending_count() == 1
    else:  # a worker that ends with this one would take it out of the queue, and lose it
        assert (huey.pending_count(), huey.scheduled_count()) == (0, 1)
        scheduled_again(huey, client)
    assert traces(client) == []
    task = huey.dequeue()
    assert task.id == result.id
    huey.execute(task)
    assert len(runs) == 2
    assert traces(client) == []


def test_a_run_that_lost_its_lock_and_is_then_interrupted_puts_nothing_back(huey, client):
    """The task is another run's by then, and what is in the list of taken tasks is that run's."""

    @huey.task(context=True)
    def work(task=None):
        client.set(KEYS.lock(task.id), "somebody-else")
        client.hset(KEYS.held, task.id, "somebody-else")
        try:
            for _ in range(1_000):
                time.sleep(0.02)
        except BaseException:  # the loss
            raise KeyboardInterrupt from None

    result = work()
    with pytest.raises(KeyboardInterrupt):
        run_next(huey)
    assert (huey.pending_count(), huey.scheduled_count()) == (0, 0)
    assert held(client, result.id) == b"somebody-else"


if not IS_OLD:

    def test_a_timeout_that_comes_when_the_task_has_ended_makes_no_failure(huey, client, monkeypatch):
        """It comes while Redis is asked whose the lock is, and nobody knows yet."""
        confirm = Lock.confirm

        def interrupted(_):
            monkeypatch.undo()
            raise TaskTimeout("timeout (1s)")

        @huey.task()
        def work():
            monkeypatch.setattr(Lock, "confirm", interrupted)
            return "done"

        result = work()
        run_next(huey)
        assert Lock.confirm is confirm
        assert result() == "done"


def test_a_result_that_cannot_be_stored_leaves_the_entry(server, client, caplog):
    """Row 33's kind: Redis goes away between the end of a task and Huey's own write."""
    instance = RedisHuey("app", url=server.url, blocking=False)
    plugin = lock_tasks(instance, options=OPTIONS)

    @instance.task()
    def work():
        return "done"

    def refuse(*_, **__):
        raise ConnectionError("gone")

    result = work()
    instance.storage.put_data = refuse
    with pytest.raises(ConnectionError):
        run_next(instance)
    assert held(client, result.id) is not None
    assert client.get(KEYS.lock(result.id)) is None
    plugin.stop(timeout_ms=1_000)
    instance.storage.pool.disconnect()


def test_the_sweep_puts_a_dead_runs_task_back_with_its_id(huey, client):
    """Once, however often it is asked, where taken tasks are kept; at least once with Huey's own storage."""

    @huey.task()
    def work(number):
        return number

    plugin = lock_tasks(huey)
    task = work.s(7)
    huey.enqueue(task)
    payload = huey.storage.dequeue()
    job = StalledJob(KEYS.queue, task.id, payload, None, 1)
    assert plugin.pm.hook.echomq_job_stalled(job=job) is True
    assert plugin.pm.hook.echomq_job_stalled(job=StalledJob("other", task.id, payload, None, 1)) is None
    if isinstance(huey.storage, ReliableRedisStorage):
        assert plugin.pm.hook.echomq_job_stalled(job=job) is True
    assert huey.pending_count() == 1
    assert huey.pending()[0].id == task.id
    assert run_next(huey) == 7


def test_a_task_that_is_given_up_ends_as_failed(huey, client):
    """Result, signal and error handler are as after a last failure."""
    told, handled = [], []
    huey.signal(signals.SIGNAL_ERROR)(lambda signal, task, *_: told.append(task.id))

    @huey.task()
    def work():
        return 1

    @huey.task()
    def handle(error):
        handled.append(error)

    plugin = lock_tasks(huey)
    task = work.s().error(handle)
    result = huey.enqueue(task)
    payload = huey.storage.dequeue()
    plugin.pm.hook.echomq_job_abandoned(job=StalledJob(KEYS.queue, task.id, payload, None, 2))
    with pytest.raises(TaskException, match="its workers died 2 times"):
        (result if not hasattr(result, "__iter__") else result[0]).get()
    assert told == [task.id]
    run_next(huey)
    assert isinstance(handled[0], TaskException)
    assert client.lrange("huey.redis.app:processing", 0, -1) == []


def test_a_task_that_another_one_runs_by_hand_has_a_lock_and_a_payload_of_its_own(huey, client):
    """``huey.execute`` inside of a task."""

    @huey.task()
    def inner():
        return client.hlen(KEYS.held)

    @huey.task()
    def outer():
        return huey.execute(inner.s())

    outer()
    assert run_next(huey) == 2
    assert traces(client) == []


def test_a_revoked_or_delayed_task_takes_no_lock(huey, client):
    """What does not run needs none."""

    @huey.task()
    def work():
        raise AssertionError("must not run")

    work().revoke()
    run_next(huey)
    task = work.schedule(delay=60).task
    huey.storage.flush_schedule()
    huey.enqueue(task)
    run_next(huey)
    assert huey.scheduled_count() == 1
    assert not client.exists(KEYS.fence)
    assert traces(client) == []


def test_in_immediate_mode_tasks_run_without_locks_and_without_redis():
    """Tests of an app need no Redis, and neither do we."""
    instance = RedisHuey("app", immediate=True, url="redis://127.0.0.1:1")
    lock_tasks(instance, options=OPTIONS)

    @instance.task()
    def work():
        return "done"

    assert work().get() == "done"


@pytest.mark.parametrize(
    "make",
    [
        lambda _: SqliteHuey("app", filename=":memory:"),
        lambda folder: FileHuey("app", path=str(folder)),
        lambda _: MemoryHuey("app"),
        lambda _: MemoryHuey("app", immediate=True),
    ],
    ids=["sqlite", "file", "memory", "immediate"],
)
def test_a_storage_without_redis_is_refused(tmp_path, make):
    """The error says what to write instead."""
    with pytest.raises(HostSetupError, match="lock_tasks\\(huey, 'redis://"):
        lock_tasks(make(tmp_path), options=OPTIONS)


def test_another_storage_works_with_locks_in_redis(server, client):
    """Locks and tasks may live in different places."""
    instance = MemoryHuey("app")
    plugin = lock_tasks(instance, server.url, options=OPTIONS)

    @instance.task()
    def work():
        return client.hlen(KEYS.held)

    work()
    assert run_next(instance) == 1
    plugin.stop(timeout_ms=1_000)


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "127.0.0.1", "option_of_the_future": 1},
        {"host": "127.0.0.1", "option_of_the_future": 1, "immediate": True},
        {"host": "127.0.0.1", "option_of_the_future": 1, "storage_class": ReliableRedisStorage},
        {"url": "redis://127.0.0.1?option_of_the_future=1"},
    ],
    ids=["keyword", "immediate", "reliable", "url"],
)
def test_an_option_that_nobody_knows_is_refused_at_set_up(settings):
    """Huey hands what it does not know to redis-py, which would complain at the first task."""
    instance = RedisHuey("app", **settings)
    with pytest.raises(HostSetupError, match="option_of_the_future"):
        lock_tasks(instance, options=OPTIONS)


if IS_OLD:

    def test_an_option_of_huey_3_is_refused_at_set_up_on_huey_2():
        """Huey 2.5 takes it for one of redis-py."""
        instance = RedisHuey("app", notify_result=True)
        with pytest.raises(HostSetupError, match="notify_result"):
            lock_tasks(instance, options=OPTIONS)


def test_what_is_no_huey_is_refused():
    """A clear error instead of one from deep inside."""
    with pytest.raises(HostSetupError, match="pass the Huey instance"):
        lock_tasks(object(), options=OPTIONS)


def test_a_reliable_storage_and_its_locks_are_in_one_redis(server):
    """Taken tasks and locks are compared by one script."""
    instance = RedisHuey("app", storage_class=ReliableRedisStorage, url=server.url)
    with pytest.raises(HostSetupError, match="in one Redis"):
        lock_tasks(instance, "redis://127.0.0.1:1", options=OPTIONS)


@pytest.mark.parametrize("priority_first", [True, False], ids=["priority-first", "reliable-first"])
def test_a_reliable_storage_with_priorities_is_refused(server, priority_first):
    """One order would take no task at all, the other would bring none back."""
    kinds = (PriorityRedisStorage, ReliableRedisStorage)
    both = type("Both", kinds if priority_first else kinds[::-1], {})
    with pytest.raises(HostSetupError, match="priority storage alone"):
        lock_tasks(RedisHuey("app", storage_class=both, url=server.url), options=OPTIONS)


def test_lock_tasks_again_has_no_effect(huey):
    """The same plugin, and one lock for each run."""
    assert lock_tasks(huey) is lock_tasks(huey, options=OPTIONS)


def test_priority_queues_are_locked_too(server, client):
    """Their tasks come back with their priority."""
    instance = PriorityRedisHuey("app", url=server.url, blocking=False)
    plugin = lock_tasks(instance, options=OPTIONS)

    @instance.task(priority=5)
    def work():
        return client.hlen(KEYS.held)

    work()
    payload = instance.storage.dequeue()
    task = instance.deserialize_task(payload)
    plugin.pm.hook.echomq_job_stalled(job=StalledJob(KEYS.queue, task.id, payload, None, 1))
    assert [score for _, score in client.zrange("huey.redis.app", 0, -1, withscores=True)] == [-5]
    assert run_next(instance) == 1
    plugin.stop(timeout_ms=1_000)
    instance.storage.pool.disconnect()


def test_a_task_that_was_only_taken_is_put_back(server, client):
    """A worker that dies between Huey's pop and the lock: after two looks the task is in the queue again."""
    options = LockOptions(lock_duration=3_000, stalled_interval=400)
    first = RedisHuey("app", storage_class=ReliableRedisStorage, url=server.url, blocking=False)
    second = RedisHuey("app", storage_class=ReliableRedisStorage, url=server.url, blocking=False)
    plugins = [lock_tasks(instance, options=options) for instance in (first, second)]

    @second.task()
    def work():
        return "done"

    work()
    assert first.storage.dequeue() is not None  # and its worker dies
    until = time.monotonic() + 20
    while (task := second.dequeue()) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert second.execute(task) == "done"
    for plugin, instance in zip(plugins, (first, second), strict=True):
        plugin.stop(timeout_ms=1_000)
        instance.storage.pool.disconnect()


def test_a_job_held_for_too_long_ends_as_if_it_had_given_up(server, client):
    """``max_hold_ms``: the task is stopped, and its retries count."""
    if monkey.is_module_patched("time"):
        sleep = gevent.sleep
    else:

        def sleep(seconds):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.02)

    instance = RedisHuey("app", url=server.url, blocking=False)
    plugin = lock_tasks(instance, options=LockOptions(lock_duration=3_000, max_hold_ms=300, lock_renew_time=400))
    canceled = []
    instance.signal(signals.SIGNAL_CANCELED)(lambda signal, task: canceled.append(task.id))

    @instance.task()
    def work():
        sleep(30)

    result = work()
    logging.getLogger("huey").setLevel(logging.CRITICAL)
    run_next(instance)
    assert canceled == [result.id]
    assert traces(client) == []
    plugin.stop(timeout_ms=1_000)
    instance.storage.pool.disconnect()


def test_cancelling_a_task_by_hand_still_works(huey, client):
    """``CancelExecution`` is the task's own way to end."""

    @huey.task(retries=2)
    def work():
        raise CancelExecution(retry=False)

    work()
    run_next(huey)
    assert huey.pending_count() == 0
    assert traces(client) == []


@pytest.mark.parametrize("step", ["is_revoked", "ready_to_run"])
def test_a_taken_task_stays_taken_when_redis_fails_before_its_start(server, client, monkeypatch, step):
    """Huey asks Redis, or schedules, before it runs a task: without an answer the task is not forgotten."""
    huey = RedisHuey("app", storage_class=ReliableRedisStorage, url=server.url, blocking=False, utc=True)
    lock_tasks(huey, options=OPTIONS)

    @huey.task()
    def work():
        raise AssertionError("it must not run")

    def no_answer(*_):
        raise RedisConnectionError("gone")

    work()
    task = huey.dequeue()
    monkeypatch.setattr(huey, step, no_answer)
    with pytest.raises(RedisConnectionError):
        huey.execute(task)
    huey.dequeue()  # forgets what this worker has dealt with
    assert client.llen("huey.redis.app:processing") == 1
    huey.storage.pool.disconnect()
