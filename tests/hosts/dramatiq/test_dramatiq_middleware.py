"""What LockMiddleware does with single messages: workers run in this process, with threads."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import dramatiq
import pluggy
import pytest
import redis
from dramatiq import group, pipeline
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import GroupCallbacks, Retries, SkipMessage, TimeLimitExceeded, time_limit
from dramatiq.rate_limits.backends import RedisBackend as RateLimiterBackend
from dramatiq.results import ResultMissing, Results
from dramatiq.results.backends import RedisBackend

from echomq_plugin import Lock, LockOptions, OwnershipUnknownError, StalledJob, hookimpl_for
from echomq_plugin.errors import HostSetupError, OptionError, RedisCallError
from echomq_plugin.hosts.dramatiq import LockMiddleware
from echomq_plugin.hosts.dramatiq.dead_workers import PASSES
from echomq_plugin.hosts.dramatiq.deliveries import RedisDeliveries
from echomq_plugin.keys import QueueKeys

OPTIONS = LockOptions(lock_duration=3_000, stalled_interval=1_000, denied_pause_ms=50)
KEYS = QueueKeys("emq", "dramatiq.default")


def wait_until(condition, limit_s=20.0):
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


@pytest.fixture
def broker(server, client):
    broker = RedisBroker(url=server.url)
    broker.add_middleware(Results(backend=RedisBackend(url=server.url), store_results=True))
    broker.add_middleware(GroupCallbacks(RateLimiterBackend(url=server.url)))
    yield broker
    broker.client.close()


@contextmanager
def working(broker, threads=2):
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=10_000)


def traces(client):
    return client.keys("emq:*:lock") + list(client.hgetall(KEYS.held))


class DeadWorker:
    """A worker that fetched some messages of an actor that does nothing, and died."""

    def __init__(self, broker, fetched, delayed=0):
        actor = dramatiq.actor(lambda: None, broker=broker, actor_name="any")
        self.messages = [broker.enqueue(actor.message()) for _ in range(fetched)]
        self.names = [message.options["redis_message_id"] for message in self.messages]
        self.broker = RedisBroker(client=broker.client, middleware=[])
        self.broker.do_fetch("default", fetched)
        late = [broker.enqueue(actor.message(), delay=60_000) for _ in range(delayed)]
        self.delayed = [message.options["redis_message_id"] for message in late]
        self.broker.do_fetch("default.DQ", fetched)

    def run(self, number):
        """Return the run of one of its messages, as the sweep finds it."""
        name = self.names[number]
        payload = f'{{"dramatiq": "{self.broker.broker_id}", "queue": "default", "delivery": "{name}"}}'
        return StalledJob("dramatiq.default", self.messages[number].message_id, payload, name, 1)


def waiting(client, queue="default"):
    return [name.decode() for name in client.lrange(f"dramatiq:{queue}", 0, -1)]


def test_a_broker_without_redis_is_refused_at_the_first_actor():
    """A stub broker: the error says which brokers work."""
    broker = StubBroker()
    broker.add_middleware(LockMiddleware("redis://localhost", options=OPTIONS))
    with pytest.raises(HostSetupError, match="RedisBroker and RabbitmqBroker"):
        dramatiq.actor(lambda: None, broker=broker, actor_name="any")


def test_a_broker_without_redis_is_refused_also_when_its_actors_are_there_already():
    """The order of set-up does not matter."""
    broker = StubBroker()
    dramatiq.actor(lambda: None, broker=broker, actor_name="any")
    with pytest.raises(HostSetupError, match="leave it out"):
        broker.add_middleware(LockMiddleware(options=OPTIONS))


@pytest.mark.parametrize("options", [{"lock_duration": 3_000}, "30 s", 0])
def test_options_of_another_kind_are_refused_at_once(options):
    """Also those that are false: they are not None."""
    with pytest.raises(OptionError, match="must be LockOptions"):
        LockMiddleware(options=options)


@pytest.mark.parametrize("wrong", [{"connection": 42}, {"pm": "mine"}], ids=["connection", "pm"])
def test_set_up_that_cannot_work_is_refused_at_the_first_actor_and_never_runs_unlocked(broker, client, wrong):
    """Dramatiq ignores what hooks raise: also an app that goes on after the refusal runs nothing without a lock."""
    broker.add_middleware(LockMiddleware(options=OPTIONS, **wrong))
    ran = []
    with pytest.raises(HostSetupError):
        dramatiq.actor(lambda: ran.append(1), broker=broker, actor_name="any", max_retries=0)
    broker.queues.add("default")
    worker = dramatiq.Worker(broker, worker_threads=1)
    with pytest.raises(HostSetupError):
        worker.start()
    proxy = dramatiq.broker.MessageProxy(dramatiq.Message("default", "any", (), {}, {}))
    with pytest.raises(HostSetupError):
        broker.emit_before("process_message", proxy)
    assert ran == []


class RabbitLikeBroker(StubBroker):
    """As far as can be tested without RabbitMQ: a broker of its kind, with queues in this process."""


RabbitLikeBroker.__module__ = "dramatiq.brokers.rabbitmq"


def test_rabbitmq_needs_to_be_told_where_locks_are_kept():
    """RabbitMQ has no Redis of its own."""
    broker = RabbitLikeBroker()
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    with pytest.raises(HostSetupError, match="connection='redis"):
        dramatiq.actor(lambda: None, broker=broker, actor_name="any")


def test_on_rabbitmq_a_dead_workers_job_is_left_to_the_broker():
    """The stalled hook says that the job is back: RabbitMQ delivers it again by itself."""
    broker = RabbitLikeBroker()
    middleware = LockMiddleware("redis://localhost", options=OPTIONS)
    broker.add_middleware(middleware)
    actor = dramatiq.actor(lambda: None, broker=broker, actor_name="any")
    payload = middleware._known_deliveries().payload(actor.message())
    job = StalledJob("dramatiq.default", "1", payload, None, 1)
    assert middleware.pm.hook.echomq_job_stalled(job=job) is True
    assert middleware.pm.hook.echomq_job_stalled(job=StalledJob("x", "1", b"\x80", None, 1)) is None


def test_on_rabbitmq_messages_run_under_locks_that_are_renewed(server, client):
    """A copy of a running message, and a run that has lost its lock, go back; nothing is dropped."""
    broker = RabbitLikeBroker()
    broker.add_middleware(LockMiddleware(server.url, options=OPTIONS))
    runs, going_on, most = [], [], []
    go_on = threading.Event()

    def slow():
        runs.append(1)
        going_on.append(1)
        most.append(len(going_on))
        try:
            go_on.wait(30)
        except BaseException:  # it does not let itself be interrupted
            go_on.wait(30)
        finally:
            going_on.pop()

    actor = dramatiq.actor(slow, broker=broker, actor_name="slow")
    message = actor.message()
    with working(broker, threads=3):
        broker.enqueue(message)
        wait_until(lambda: client.exists(KEYS.lock(message.message_id)))
        token = client.get(KEYS.lock(message.message_id))
        broker.enqueue(message)
        until = time.monotonic() + 2 * OPTIONS.lock_duration / 1000
        while time.monotonic() < until:  # longer than a lock lives
            assert client.get(KEYS.lock(message.message_id)) == token
            time.sleep(0.1)
        client.delete(KEYS.lock(message.message_id))
        go_on.set()
        wait_until(lambda: len(runs) == 3 and not traces(client))  # the lost one, again, and the copy
    assert set(most) == {1}


def hooks_of_a_message(middleware, broker, message):
    """Call, not through the broker, which ignores what they raise, the hooks that may come without a run."""
    for hook in (middleware.after_skip_message, middleware.after_process_message, middleware.after_ack):
        hook(broker, message)
    middleware.after_nack(broker, message)
    middleware.before_enqueue(broker, message, None)
    middleware.after_enqueue(broker, message, None)


def test_hooks_before_boot_do_nothing(broker, client):
    """Row 64: enqueued, skipped and acknowledged messages before any worker boots; nothing is tracked."""
    middleware = LockMiddleware(options=OPTIONS)
    message = dramatiq.broker.MessageProxy(dramatiq.Message("default", "any", (), {}, {}))
    hooks_of_a_message(middleware, broker, message)  # it has not met a queue yet
    assert middleware.plugin is None
    broker.add_middleware(middleware)
    actor = dramatiq.actor(lambda: None, broker=broker, actor_name="any")
    hooks_of_a_message(middleware, broker, dramatiq.broker.MessageProxy(actor.send()))
    assert middleware.plugin.manager.get_active_job_count() == 0
    assert traces(client) == []


def test_a_message_that_is_processed_before_any_boot_is_locked_all_the_same(broker, client):
    """Row 64: neither a queue nor a worker has been announced to the middleware."""
    middleware = LockMiddleware(options=OPTIONS)
    message = dramatiq.broker.MessageProxy(dramatiq.Message("default", "any", (), {}, {}))
    middleware.before_process_message(broker, message)
    assert middleware.plugin.manager.get_tracked_job_ids() == [message.message_id]
    middleware.after_ack(broker, message)
    assert middleware.plugin.manager.get_active_job_count() == 0
    assert traces(client) == []
    middleware.plugin.stop(0)


def test_a_message_that_other_middleware_skips_gives_its_lock_back(broker, client):
    """Row 64: a skip by middleware that comes after ours."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    skipped = threading.Event()

    class Skips(dramatiq.Middleware):
        def before_process_message(self, broker, message):
            assert client.hlen(KEYS.held) == 1
            skipped.set()
            raise SkipMessage("not today")

    broker.add_middleware(Skips())
    actor = dramatiq.actor(lambda: None, broker=broker, actor_name="any")
    actor.send()
    with working(broker):
        wait_until(skipped.is_set)
        wait_until(lambda: traces(client) == [])


def test_actors_from_before_the_middleware_are_locked_too(broker, client):
    """The order of set-up does not matter."""
    actor = dramatiq.actor(lambda: client.hlen(KEYS.held), broker=broker, actor_name="early")
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    message = actor.send()
    with working(broker):
        assert message.get_result(backend=broker.get_results_backend(), block=True) == 1
    assert actor.fn.__wrapped__ is not None


def test_an_actor_that_is_called_by_hand_takes_no_lock(broker, client):
    """``actor()`` is a plain call; so is an actor that a running actor calls."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    inner = dramatiq.actor(lambda: client.hlen(KEYS.held), broker=broker, actor_name="inner")
    outer = dramatiq.actor(lambda: inner(), broker=broker, actor_name="outer")  # noqa: PLW0108  # an actor of its own
    assert outer() == 0
    message = outer.send()
    with working(broker):
        assert message.get_result(backend=broker.get_results_backend(), block=True) == 1


def test_pipelines_groups_and_results_go_on_working(broker, client):
    """What Dramatiq composes from results is as without locks."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    add = dramatiq.actor(lambda a, b: a + b, broker=broker, actor_name="add")
    done = threading.Event()
    finished = dramatiq.actor(lambda: done.set(), broker=broker, actor_name="finished")  # noqa: PLW0108
    pipe = pipeline([add.message(1, 2), add.message(3), add.message(4)], broker=broker)
    members = group([add.message(n, n) for n in range(5)], broker=broker)
    members.add_completion_callback(finished.message())
    backend = broker.get_results_backend()
    with working(broker):
        pipe.run()
        members.run()
        last = pipe.messages[-1]
        assert last.get_result(backend=backend, block=True) == 10
        assert sorted(message.get_result(backend=backend, block=True) for message in members.children) == [
            0,
            2,
            4,
            6,
            8,
        ]
        wait_until(done.is_set)
        wait_until(lambda: traces(client) == [])


def test_delayed_messages_run_once_each(broker, client):
    """The copy in the delay queue takes no lock: only the run does."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    ran = []
    actor = dramatiq.actor(lambda number: ran.append(number), broker=broker, actor_name="note")  # noqa: PLW0108
    for number in range(20):
        actor.send_with_options(args=(number,), delay=50)
    with working(broker):
        wait_until(lambda: len(ran) == 20)
        wait_until(lambda: client.hlen("dramatiq:default.msgs") == 0)
    assert sorted(ran) == list(range(20))
    assert traces(client) == []


def test_a_denied_message_gets_no_result_while_it_waits(broker, client):
    """Dramatiq stores None for a skipped message; a message that is only put back has no result yet."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    actor = dramatiq.actor(lambda: "done", broker=broker, actor_name="any")
    message = actor.message()
    client.set(KEYS.lock(message.message_id), "somebody-else")
    broker.enqueue(message)
    backend = broker.get_results_backend()
    with working(broker):
        wait_until(lambda: client.hlen("dramatiq:default.DQ.msgs") == 1)
        with pytest.raises(ResultMissing):
            message.get_result(backend=backend)
        client.delete(KEYS.lock(message.message_id))
        assert message.get_result(backend=backend, block=True) == "done"


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_a_lost_run_stores_no_result_and_sends_no_callback(broker, client, fails):
    """The loser writes nothing: neither result, nor failure, nor callback, nor the next of its pipeline."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    called = []
    callback = dramatiq.actor(lambda *args: called.append(args), broker=broker, actor_name="callback")
    started, go_on = threading.Event(), threading.Event()

    def slow():
        started.set()
        try:
            go_on.wait(20)
        except BaseException:  # it does not let itself be interrupted
            go_on.wait(20)
        if fails:
            raise ValueError("too late")
        return "too late"

    actor = dramatiq.actor(
        slow, broker=broker, actor_name="slow", max_retries=0, on_failure="callback", on_success="callback"
    )
    with working(broker, threads=1):
        message = pipeline([actor.message(), callback.message()], broker=broker).run().messages[0]
        wait_until(started.is_set)
        client.set(KEYS.lock(message.message_id), "somebody-else")
        go_on.set()
        wait_until(lambda: client.hlen("dramatiq:default.DQ.msgs") == 1)  # given back, and denied
        with pytest.raises(ResultMissing):
            message.get_result(backend=broker.get_results_backend())
        assert client.hlen("dramatiq:default.XQ.msgs") == 0
        assert called == []
        client.flushall()


def dead_workers(broker):
    """Return what looks for dead workers, and no worker thread that would call it by itself."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    return middleware, lambda: middleware._known_deliveries()._dead_workers


def test_what_a_silent_worker_had_fetched_comes_back_after_its_runs(broker, client):
    """A run that has an entry is the sweep's, which counts it; as long as there is one the worker may live."""
    middleware, watch = dead_workers(broker)
    dead = DeadWorker(broker, 3, delayed=1)
    look = watch().look
    lock = middleware.plugin.job_start("dramatiq.default", dead.messages[0].message_id, dead.names[0], b"", None)
    beat = client.zscore("dramatiq:__heartbeats__", dead.broker.broker_id)
    for _ in range(PASSES + 2):
        look()
    assert waiting(client) == []
    middleware.pm.hook.echomq_job_stalled(job=dead.run(0))
    middleware.plugin.job_finish(lock, "completed")
    assert waiting(client) == [dead.names[0]]
    look()
    assert sorted(waiting(client)) == sorted(dead.names)
    assert waiting(client, "default.DQ") == dead.delayed
    assert client.zscore("dramatiq:__heartbeats__", dead.broker.broker_id) == beat
    middleware.plugin.stop(0)


def test_a_worker_that_beats_keeps_what_it_has_fetched(broker, client):
    """Once in all passes is enough; afterwards they begin anew."""
    _, watch = dead_workers(broker)
    alive = DeadWorker(broker, 2)
    for number in range(PASSES * 3):
        if number % PASSES == 0:
            client.zincrby("dramatiq:__heartbeats__", 1, alive.broker.broker_id)
        watch().look()
    assert waiting(client) == []


def test_no_worker_is_dead_for_an_outage_in_which_none_could_beat(broker, client, monkeypatch):
    """What a live worker has in memory would run once more, and its retries too."""
    _, watch = dead_workers(broker)
    DeadWorker(broker, 2)
    look = watch().look
    for _ in range(PASSES):
        look()
    with monkeypatch.context() as patched:

        def no_answer(*_):
            raise RedisCallError("look for silent workers", "gone")

        patched.setattr(watch()._connections, "call", no_answer)
        with pytest.raises(RedisCallError):
            look()
    for _ in range(PASSES):
        look()
    assert waiting(client) == []
    look()
    assert len(waiting(client)) == 2


def test_workers_look_for_dead_ones_by_themselves(broker, client, monkeypatch):
    """Also for one that had begun nothing: no lock tells of it."""
    middleware, watch = dead_workers(broker)
    dead = DeadWorker(broker, 2)
    monkeypatch.setattr(watch(), "pass_every_s", 0.05)
    with working(broker):
        wait_until(lambda: client.hlen("dramatiq:default.msgs") == 0)
    assert client.scard(f"dramatiq:__acks__.{dead.broker.broker_id}.default") == 0
    assert middleware._watch_ends is None


def test_a_dropped_copy_does_not_take_the_running_delivery_with_it(broker, client):
    """Acknowledging a second delivery deletes the body of both; should the first one die, its body is still there."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    dead = DeadWorker(broker, 1)
    job = dead.run(0)
    lock = middleware.plugin.job_start(job.queue, job.job_id, job.delivery, job.payload, None)
    client.rpush("dramatiq:default", job.delivery)
    with working(broker):
        wait_until(lambda: client.hlen("dramatiq:default.msgs") == 0)
    for _ in range(2):  # the second one changes nothing
        assert middleware.pm.hook.echomq_job_stalled(job=job) is True
        assert waiting(client) == [job.delivery]
        assert dramatiq.Message.decode(client.hget("dramatiq:default.msgs", job.delivery)).message_id == job.job_id
    middleware.plugin.job_finish(lock, "completed")
    middleware.plugin.stop(0)


def test_an_abandoned_message_goes_to_the_dead_letters(broker, client):
    """A poison message ends where Dramatiq's own failed messages end."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    dead = DeadWorker(broker, 1)
    for _ in range(2):
        middleware.pm.hook.echomq_job_abandoned(job=dead.run(0))
    assert client.hkeys("dramatiq:default.XQ.msgs") == [dead.names[0].encode()]
    assert client.hlen("dramatiq:default.msgs") == 0


def test_messages_of_another_namespace_are_not_ours(broker, client):
    """Two apps on one Redis with equal queue names: neither brings back the other's messages."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    dramatiq.actor(lambda: None, broker=broker, actor_name="any")
    payload = '{"dramatiq": "some-worker", "queue": "default", "delivery": "1"}'
    job = StalledJob("other-app.default", "1", payload, "1", 1)
    assert middleware.pm.hook.echomq_job_stalled(job=job) is None


def test_the_lock_goes_after_the_retry_is_enqueued(broker, client):
    """While the retry of a failed message is being enqueued its lock is still held."""
    pm = pluggy.PluginManager("mine")
    broker.add_middleware(LockMiddleware(options=OPTIONS, pm=pm))
    held_at_retry, outcomes = [], []

    class Watch:
        @hookimpl_for(pm)(wrapper=True)
        def echomq_job_finish(self, lock, outcome):
            outcomes.append((outcome, client.hlen("dramatiq:default.DQ.msgs")))
            return (yield)

    pm.register(Watch())
    retries = next(middleware for middleware in broker.middleware if isinstance(middleware, Retries))
    original = retries.after_process_message

    def watched(*args, **kwargs):
        original(*args, **kwargs)
        held_at_retry.append(client.hlen(KEYS.held))

    retries.after_process_message = watched

    def fail():
        raise ValueError("as planned")

    actor = dramatiq.actor(fail, broker=broker, actor_name="fails", max_retries=1, min_backoff=60_000)
    actor.send()
    with working(broker):
        wait_until(lambda: outcomes)
        wait_until(lambda: traces(client) == [])
    assert held_at_retry == [1]
    assert outcomes == [("retry", 1)]


def test_a_retry_that_could_not_be_enqueued_takes_place(broker, client, monkeypatch):
    """Dramatiq logs the error, acknowledges the message, and it is gone."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    runs = []

    def no_answer(*_):
        monkeypatch.undo()
        raise redis.ConnectionError("gone")

    def fail_once():
        runs.append(1)
        if len(runs) == 1:
            monkeypatch.setattr(broker, "do_enqueue", no_answer, raising=False)
            raise ValueError("as planned")

    actor = dramatiq.actor(fail_once, broker=broker, actor_name="fails", min_backoff=10)
    with working(broker):
        actor.send()
        wait_until(lambda: len(runs) == 2 and not traces(client) and client.hlen("dramatiq:default.msgs") == 0)


def test_a_lost_run_whose_copy_was_dropped_comes_back(broker, client):
    """The copy took the body along when it was acknowledged: the loser gives it back too."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    started, go_on, runs = threading.Event(), threading.Event(), []

    def slow():
        runs.append(1)
        started.set()
        try:
            go_on.wait(20)
        except BaseException:  # it does not let itself be interrupted
            go_on.wait(20)

    actor = dramatiq.actor(slow, broker=broker, actor_name="slow")
    with working(broker):
        message = actor.send()
        wait_until(started.is_set)
        client.rpush("dramatiq:default", message.options["redis_message_id"])
        wait_until(lambda: client.hlen("dramatiq:default.msgs") == 0)
        client.delete(KEYS.lock(message.message_id))
        go_on.set()
        wait_until(lambda: len(runs) == 2 and not traces(client))


def test_a_lost_run_that_cannot_be_given_back_keeps_its_entry(broker, client, monkeypatch):
    """The acknowledgement that follows is of no message: it must not end the job."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    started, go_on, tried = threading.Event(), threading.Event(), threading.Event()

    def slow():
        started.set()
        try:
            go_on.wait(20)
        except BaseException:  # it does not let itself be interrupted
            go_on.wait(20)

    def no_answer(*_):
        tried.set()
        raise ConnectionError("gone")

    actor = dramatiq.actor(slow, broker=broker, actor_name="slow")
    with working(broker, threads=1):
        message = actor.send()
        wait_until(started.is_set)
        monkeypatch.setattr(broker, "do_requeue", no_answer)
        client.delete(KEYS.lock(message.message_id))
        go_on.set()
        wait_until(tried.is_set)
        monkeypatch.undo()
        started.clear()
        wait_until(started.is_set)  # the sweep brought it back
        wait_until(lambda: not traces(client))


def test_a_time_limit_that_comes_when_the_actor_has_ended_makes_no_failure(broker, client, monkeypatch):
    """Redis does not say whose the lock is until the limit is over: a loser must not enqueue a retry."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    confirm, limit_is_over, runs = Lock.confirm, [], []

    def no_answer_for_long(lock):
        if limit_is_over:
            return confirm(lock)
        raise OwnershipUnknownError(lock.queue, lock.job_id)

    def note_limit(thread_id, kind):
        raise_in_thread(thread_id, kind)
        limit_is_over.append(kind)

    raise_in_thread = time_limit.raise_thread_exception
    monkeypatch.setattr(time_limit, "raise_thread_exception", note_limit)
    monkeypatch.setattr(Lock, "confirm", no_answer_for_long)
    actor = dramatiq.actor(
        lambda: runs.append(1), broker=broker, actor_name="short", time_limit=100, min_backoff=10, max_retries=1
    )
    broker.emit_after("process_boot")
    with working(broker):
        actor.send()
        wait_until(lambda: limit_is_over and not traces(client) and client.hlen("dramatiq:default.msgs") == 0)
        assert client.hlen("dramatiq:default.DQ.msgs") == 0
    assert runs == [1]


def test_a_time_limit_that_comes_while_a_message_waits_for_its_lock_is_no_failure(broker, client, monkeypatch):
    """It has not run yet: it is put back all the same."""
    middleware = LockMiddleware(options=OPTIONS)
    broker.add_middleware(middleware)
    runs = []
    actor = dramatiq.actor(lambda: runs.append(1), broker=broker, actor_name="waits", max_retries=0)
    put_back = RedisDeliveries.put_back

    def interrupted(*_):
        monkeypatch.setattr(RedisDeliveries, "put_back", put_back)
        raise TimeLimitExceeded

    monkeypatch.setattr(RedisDeliveries, "put_back", interrupted)
    message = actor.message()
    client.set(KEYS.lock(message.message_id), "somebody-else")
    broker.enqueue(message)
    with working(broker):
        wait_until(lambda: client.hlen("dramatiq:default.DQ.msgs"))
        client.delete(KEYS.lock(message.message_id))
        wait_until(lambda: runs == [1] and not traces(client))
    assert client.zcard("dramatiq:default.XQ") == 0


def test_a_second_lock_middleware_is_refused(broker, client):
    """Each would take the other's lock for that of a running delivery, and drop every message."""
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    with pytest.raises(HostSetupError, match="add one"):
        dramatiq.actor(lambda: None, broker=broker, actor_name="any")


@pytest.mark.parametrize("delay_ms", [1_000, 6_000], ids=["due-while-it-is-away", "due-later"])
def test_delayed_messages_that_a_worker_has_fetched_outlive_an_outage_of_redis(own_server, delay_ms):
    """Without a new worker: Dramatiq's own consumers forget them, or end."""
    broker = RedisBroker(url=own_server.url)
    broker.add_middleware(LockMiddleware(options=OPTIONS))
    ran = []
    actor = dramatiq.actor(lambda number: ran.append(number), broker=broker, actor_name="note")  # noqa: PLW0108
    fetched = f"dramatiq:__acks__.{broker.broker_id}.default.DQ"
    with working(broker):
        for number in range(5):
            actor.send_with_options(args=(number,), delay=delay_ms)
        wait_until(lambda: ran or broker.client.scard(fetched) == 5)
        own_server.stop()
        time.sleep(2)  # both consumers have asked, and got no answer
        own_server.start()
        wait_until(lambda: set(ran) == set(range(5)), limit_s=60)
    broker.client.close()
