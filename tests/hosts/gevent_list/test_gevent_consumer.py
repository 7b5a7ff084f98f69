"""The list consumer inside this process: every way a run can end, and what it leaves in Redis."""

from __future__ import annotations

import hashlib
import logging
import os
import signal

import gevent
import pluggy
import pytest
import redis

from echomq_plugin import (
    LockLostInterrupt,
    LockOptions,
    LostLock,
    StalledJob,
    StartUndecidedError,
    attach,
    hookimpl_for,
)
from echomq_plugin.connections import Connections
from echomq_plugin.errors import AttachError, InvalidNameError, OptionError, RedisCallError, ServerUnsuitableError
from echomq_plugin.hosts import list_job, reliable_list
from echomq_plugin.hosts.gevent import Consumer, current_lock
from echomq_plugin.hosts.parking import MOST_PARKED
from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.testing import RecordingPlugin, fake_redis

# Ticks that come often leave calls much of a lock's short life: the machine that runs this may be slow.
DURATIONS = {"lock_duration": 2_400, "lock_renew_time": 600, "call_limit_ms": 900}


class App:
    """One app with a plugin and a consumer, both stopped at the end."""

    def __init__(self, connection, **options):
        self.pm = pluggy.PluginManager("app")
        settings = {**DURATIONS, "stalled_interval": 1_000, "denied_pause_ms": 50, **options}
        self.plugin = attach(self.pm, connection, "mail", LockOptions(**settings))
        self.recorded = RecordingPlugin(self.pm)
        self.pm.register(self.recorded)
        self.consumer = None
        self.greenlet = None

    def consume(self, handler, *, signals=(), **settings):
        self.consumer = Consumer(self.plugin, "mail", handler, **{"job_id": bytes.decode, **settings})
        self.greenlet = gevent.spawn(self.consumer.run, signals)

    def end(self):
        if self.consumer is not None:
            self.consumer.stop(force=True)
            self.greenlet.join(20)
            assert self.greenlet.ready()
        self.plugin.stop(timeout_ms=2_000)


@pytest.fixture
def make_app():
    apps = []

    def make(connection, **options):
        apps.append(App(connection, **options))
        return apps[-1]

    yield make
    for app in apps:
        app.end()


@pytest.fixture
def app(make_app, client, server):
    return make_app(server.url)


def items(client, key="mail"):
    return client.lrange(key, 0, -1)


def nothing_left(client):
    return not client.exists("mail", "mail:processing", "emq:mail:held")


def test_an_item_is_acknowledged_after_its_handler_and_before_its_lock_goes(app, client, wait_until):
    seen = []

    def handler(item):
        lock = current_lock()
        seen.append((item, lock.job_id, items(client, "mail:processing"), client.get("emq:mail:one:lock")))

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: seen and nothing_left(client), "the item is done")
    ((item, job_id, taken, token),) = seen
    assert (item, job_id, taken) == (b"one", "one", [b"one"])
    assert token is not None
    assert not client.exists("emq:mail:one:lock", "mail:failed")


def test_items_are_taken_in_the_order_they_were_pushed_in(app, client, wait_until):
    seen = []
    for number in range(20):
        client.lpush("mail", number)
    app.consume(seen.append, concurrency=1)
    wait_until(lambda: len(seen) == 20, "all ran")
    assert seen == [str(number).encode() for number in range(20)]


def test_no_more_is_taken_than_there_are_slots(app, client, wait_until):
    go_on = gevent.event.Event()
    for number in range(10):
        client.lpush("mail", number)
    app.consume(lambda _: go_on.wait(), concurrency=3)
    wait_until(lambda: client.llen("mail:processing") == 3, "the slots are full")
    assert client.llen("mail") == 7
    go_on.set()
    wait_until(lambda: nothing_left(client), "all ran")


def test_an_item_whose_handler_raises_goes_to_the_failed_ones(app, client, wait_until, caplog):
    def handler(item):
        if item == b"timeout":
            raise gevent.Timeout(1)
        raise ValueError("broken")

    client.lpush("mail", "one", "timeout")
    app.consume(handler)
    wait_until(lambda: client.llen("mail:failed") == 2, "both failed")
    wait_until(lambda: nothing_left(client), "locks are gone")
    events = [record for record in caplog.records if getattr(record, "echomq_event", "") == "job failed"]
    assert {record.exc_info[0] for record in events} == {ValueError, gevent.Timeout}


def test_the_job_id_is_the_sha1_of_the_item_unless_told_otherwise(app, client, wait_until):
    seen = []
    client.lpush("mail", b"\xff\x00")
    app.consume(lambda _: seen.append(current_lock().job_id), job_id=None)
    wait_until(lambda: seen, "it ran")
    assert seen == [hashlib.sha1(b"\xff\x00").hexdigest()]


@pytest.mark.parametrize("answer", [None, "", b"\xff", ValueError("no JSON")], ids=repr)
def test_an_item_without_a_usable_job_id_goes_to_the_failed_ones(app, client, wait_until, answer):
    def job_id(item):
        if item == b"good":
            return "good"
        if isinstance(answer, Exception):
            raise answer
        return answer

    seen = []
    client.lpush("mail", "bad", "good")
    app.consume(seen.append, job_id=job_id)
    wait_until(lambda: items(client, "mail:failed") == [b"bad"] and nothing_left(client), "it failed")
    assert seen == [b"good"]


@pytest.fixture
def slow_sweep(make_app, client, server):
    """An app whose ticks see a loss long before its sweep does, as they do with the usual durations."""
    return make_app(server.url, stalled_interval=3_000)


def test_a_lost_lock_kills_the_greenlet_and_the_loser_writes_nothing(slow_sweep, client, wait_until):
    ends = []

    def handler(_):
        if ends:
            return
        client.delete("emq:mail:one:lock")
        try:
            gevent.sleep(60)
        except LockLostInterrupt as interrupt:
            ends.append((interrupt.lost.reason, items(client, "mail:processing")))
            raise

    client.lpush("mail", "one")
    slow_sweep.consume(handler)
    # The second run is the stalled checker's doing.
    wait_until(lambda: slow_sweep.recorded.of("echomq_job_recovered") and nothing_left(client), "the job ran again")
    assert ends == [("missing", [b"one"])]
    assert [lost.reason for lost in slow_sweep.recorded.lost] == ["missing"]
    assert not client.exists("mail:failed")


def test_a_run_is_stopped_when_the_next_run_of_its_job_begins_in_the_same_process(app, client, wait_until):
    ends = []

    def handler(_):
        if client.incr("runs") > 1:
            gevent.sleep(0.2)
            return
        # Lost, and at once put back and taken again, before any tick can notice.
        client.delete("emq:mail:one:lock", "mail:processing", "emq:mail:held")
        client.lpush("mail", "one")
        try:
            gevent.sleep(60)
        except LockLostInterrupt as interrupt:
            ends.append(interrupt.lost.reason)
            raise

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: client.get("runs") == b"2" and nothing_left(client), "the second run is acknowledged")
    assert ends == ["taken"]
    assert [lost.reason for lost in app.recorded.lost] == ["taken"]


@pytest.mark.parametrize("handler_end", ["returns", "raises"])
def test_a_handler_that_ends_after_its_lock_was_taken_over_writes_nothing(app, client, wait_until, handler_end):
    ended = []

    def handler(_):
        # Another run has it now, and this one has not been told.
        client.set("emq:mail:one:lock", "another", px=60_000)
        client.hset("emq:mail:held", "one", "another")
        ended.append(True)
        if handler_end == "raises":
            raise ValueError("late")

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: ended and not app.plugin.manager.get_active_job_count(), "the run ended")
    assert items(client, "mail:processing") == [b"one"]
    assert client.get("emq:mail:one:lock") == b"another"
    assert client.hget("emq:mail:held", "one") == b"another"
    assert not client.exists("mail", "mail:failed")


def test_a_handler_that_swallows_the_interrupt_still_writes_nothing(slow_sweep, client, wait_until):
    runs = []

    def handler(_):
        runs.append("began")
        if len(runs) > 1:
            return
        client.delete("emq:mail:one:lock")
        try:
            gevent.sleep(60)
        except BaseException:
            runs[0] = "swallowed"
            assert client.llen("mail:processing") == 1

    client.lpush("mail", "one")
    slow_sweep.consume(handler)
    wait_until(lambda: nothing_left(client), "the second run is acknowledged")
    assert runs == ["swallowed", "began"]


def test_a_job_whose_lock_was_lost_before_it_began_does_not_run(app, client):
    app.plugin.start()
    ran = []
    client.lpush("mail:processing", "one")
    lock = app.plugin.job_start("mail", "one", payload=b"one")
    job = list_job.ListJob(
        b"one",
        lock,
        ran.append,
        plugin=app.plugin,
        items=reliable_list.ReliableList(app.plugin.connections, "mail"),
        outage=None,
        forced=gevent.event.Event(),
    )
    lock.lost = LostLock("one", lock.token, "taken", 0)
    greenlet = gevent.spawn(job.run)
    greenlet.join(10)
    assert greenlet.successful()
    assert ran == []
    assert client.hexists("emq:mail:held", "one")
    assert items(client, "mail:processing") == [b"one"]


def test_a_job_that_is_held_too_long_ends_among_the_failed_ones(make_app, client, server, wait_until):
    app = make_app(server.url, max_hold_ms=200, max_hold_grace_ms=10_000)
    ends = []

    def handler(_):
        try:
            gevent.sleep(60)
        except LockLostInterrupt as interrupt:
            ends.append(interrupt.lost.reason)
            raise

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: items(client, "mail:failed") == [b"one"] and nothing_left(client), "it is given up")
    assert ends == ["held_too_long"]


def test_a_denied_item_goes_behind_all_that_waits_and_is_run_in_the_end(app, client, wait_until):
    seen = []
    client.set("emq:mail:denied:lock", "another", px=60_000)
    client.lpush("mail", "denied", "fresh")
    app.consume(seen.append, concurrency=1)
    wait_until(lambda: seen == [b"fresh"], "what is behind it runs")
    client.delete("emq:mail:denied:lock")
    wait_until(lambda: seen == [b"fresh", b"denied"] and nothing_left(client), "it ran")


def test_a_denied_item_is_tried_again_after_pauses_and_not_at_once(make_app, client, server, wait_until):
    app = make_app(server.url, denied_pause_ms=100)
    client.set("emq:mail:denied:lock", "another", px=60_000)
    client.lpush("mail", "denied")
    seen = []
    app.consume(seen.append, concurrency=1)
    taken_before = (
        client.info("commandstats")["cmdstat_blmove"]["calls"]
        if wait_until(lambda: "cmdstat_blmove" in client.info("commandstats"), "it was taken")
        else 0
    )
    began = client.time()
    wait_until(lambda: client.info("commandstats")["cmdstat_blmove"]["calls"] >= taken_before + 10, "ten tries")
    ended = client.time()
    passed_ms = (ended[0] - began[0]) * 1_000 + (ended[1] - began[1]) / 1_000
    # Ten tries are nine pauses; each is followed by a BLMOVE, and so is each empty wait of the server.
    assert passed_ms >= 9 * 100 / 2
    assert seen == []


def test_only_so_many_items_are_parked_at_once(make_app, client, server, wait_until):
    app = make_app(server.url, denied_pause_ms=60_000)
    client.set("emq:mail:same:lock", "another", px=60_000)
    client.lpush("mail", *["same"] * (MOST_PARKED + 50))
    app.consume(lambda _: None, job_id=lambda _: "same")
    # One more is in the dispatcher's hand.
    wait_until(lambda: client.llen("mail:processing") == MOST_PARKED + 1, "all places are taken")
    assert client.llen("mail") == 49
    app.consumer.stop()
    app.greenlet.join(20)
    assert app.greenlet.value is True
    assert client.llen("mail") == MOST_PARKED + 50


@pytest.mark.parametrize("error", [StartUndecidedError("mail", "one"), RuntimeError("a plugin's mistake")], ids=repr)
def test_an_item_that_could_not_start_is_put_back_and_never_run_unlocked(app, client, wait_until, error):
    failures = [error, error]

    class Wrapper:
        @pluggy.HookimplMarker("app")(wrapper=True)
        def echomq_job_start(self):
            if failures:
                raise failures.pop()
            return (yield)

    app.pm.register(Wrapper())
    seen = []
    client.lpush("mail", "one")
    app.consume(lambda item: seen.append(client.exists("emq:mail:one:lock")))
    wait_until(lambda: nothing_left(client), "it ran")
    assert seen == [1]
    assert failures == []


def test_nothing_runs_once_the_library_is_detached(app, client, wait_until, caplog):
    seen = []
    app.consume(seen.append)
    wait_until(lambda: app.consumer.plugin.pm.has_plugin("echomq-list:mail"), "it consumes")
    app.plugin.detach(app.pm)
    client.lpush("mail", "one")
    wait_until(lambda: "start failed" in caplog.text, "it was refused")
    assert seen == []


def test_a_wrapper_that_raises_at_the_finish_ends_nothing(app, client, wait_until, caplog):
    class Wrapper:
        @pluggy.HookimplMarker("app")(wrapper=True)
        def echomq_job_finish(self):
            yield
            raise RuntimeError("a plugin's mistake")

    app.pm.register(Wrapper())
    client.lpush("mail", "one", "two")
    app.consume(lambda _: None, concurrency=1)
    wait_until(lambda: caplog.text.count("finish failed") == 2, "both ran, and the log tells")
    assert nothing_left(client)


def test_an_orphan_is_put_back_and_run(app, client, wait_until):
    # Taken by a worker that died before its lock.
    client.lpush("mail:processing", "orphan")
    seen = []
    app.consume(seen.append)
    wait_until(lambda: seen == [b"orphan"] and nothing_left(client), "it ran")


def test_an_orphan_without_a_job_id_ends_among_the_failed_ones(app, client, wait_until):
    def job_id(item):
        raise ValueError("no JSON")

    client.lpush("mail:processing", "orphan")
    app.consume(lambda _: None, job_id=job_id)
    wait_until(lambda: items(client, "mail:failed") == [b"orphan"], "it failed")


def test_items_that_somebody_holds_are_no_orphans(app, client, wait_until):
    client.lpush("mail:processing", "locked", "entered", "orphan")
    client.set("emq:mail:locked:lock", "another", px=60_000)
    client.hset("emq:mail:held", "entered", "another")
    seen = []
    app.consume(seen.append)
    wait_until(lambda: seen == [b"orphan"], "the orphan ran")
    wait_until(lambda: sorted(items(client, "mail:processing")) == [b"entered", b"locked"], "only the orphan went")


def test_a_worker_that_is_slow_from_taking_an_item_to_its_lock_never_runs_it_beside_another(
    make_app, client, server, wait_until
):
    # Row 22. Checkers look every 100 ms meanwhile, and may well give the item to somebody else.
    often = {"lock_duration": 6_000, "lock_renew_time": 100, "stalled_interval": 200}
    slow, quick = make_app(server.url, **often), make_app(server.url, **often)
    running, runs, most, late = [], [], [0], []

    def handler(item):
        running.append(item)
        runs.append(item)
        most[0] = max(most[0], len(running))
        gevent.sleep(0.5)
        running.remove(item)

    class Slow:
        @hookimpl_for(slow.pm)(wrapper=True)
        def echomq_job_start(self):
            gevent.sleep(1.5)
            try:
                return (yield)
            finally:
                late.append(True)

    slow.pm.register(Slow())
    slow.consume(handler)
    client.lpush("mail", "one")
    wait_until(lambda: items(client, "mail:processing") == [b"one"], "it is taken, and has no lock")
    quick.consume(handler)
    wait_until(lambda: late and nothing_left(client) and not running, "it has run")
    assert runs
    assert most == [1]
    assert slow.recorded.lost == quick.recorded.lost == []


def test_an_item_that_was_acknowledged_is_not_pushed_again_when_its_worker_dies(app, client, wait_until):
    # It had acknowledged the item, and died before it gave the lock back.
    other = attach(pluggy.PluginManager("other"), app.plugin.connections.source, "mail", app.plugin.options)
    other.start()
    other.job_start("mail", "one", payload=b"one")
    other.manager.stop()
    seen = []
    app.consume(seen.append)
    wait_until(lambda: app.recorded.of("echomq_job_recovered"), "the sweep finds it")
    wait_until(lambda: nothing_left(client), "its entry goes")
    other.stop(timeout_ms=0)
    assert seen == []


def test_stalled_jobs_of_other_queues_and_without_payload_are_left_to_others(app, client):
    app.consume(lambda _: None)
    for job in (StalledJob("other", "one", b"one", None, 1), StalledJob("mail", "one", None, None, 1)):
        app.pm.hook.echomq_job_abandoned(job=job)
        assert app.pm.hook.echomq_job_stalled(job=job) is None
    assert not client.exists("mail", "mail:failed")


def test_text_payloads_are_put_back_as_bytes(app, client):
    app.consume(lambda _: gevent.sleep(60))
    app.consumer.stop()
    app.greenlet.join(20)
    consumer = Consumer(app.plugin, "mail", lambda _: None)
    client.lpush("mail:processing", "jöb")
    assert app.pm.hook.echomq_job_stalled(job=StalledJob("mail", "one", "jöb", None, 1)) is True
    consumer.close()
    assert items(client) == ["jöb".encode()]


def test_an_outage_is_logged_once_and_loses_nothing(make_app, own_server, wait_until, caplog):
    caplog.set_level(logging.INFO, "echomq_plugin")
    app = make_app(own_server.url, lock_duration=9_000, lock_renew_time=1_000)
    with redis.Redis.from_url(own_server.url) as client:
        go_on = gevent.event.Event()
        client.lpush("mail", *range(10))
        app.consume(lambda _: go_on.wait())
        wait_until(lambda: client.llen("mail:processing") == 10, "all run")
        own_server.signal(signal.SIGSTOP)
        # Ten handlers end, and nobody answers.
        go_on.set()
        wait_until(lambda: "redis unreachable" in caplog.text, "it is noticed")
        own_server.signal(signal.SIGCONT)
        wait_until(lambda: nothing_left(client), "all are acknowledged")
        wait_until(lambda: "redis answers again" in caplog.text, "it is over")
        assert caplog.text.count("redis unreachable") == caplog.text.count("redis answers again")
        assert not client.exists("mail:failed")


def test_a_forced_end_without_redis_leaves_the_jobs_to_the_sweep(make_app, own_server, wait_until):
    app = make_app(own_server.url)
    with redis.Redis.from_url(own_server.url) as client:
        client.lpush("mail", "running", "parked")
        client.set("emq:mail:parked:lock", "another", px=2_000)
        app.consume(lambda _: gevent.sleep(60))
        wait_until(lambda: client.exists("emq:mail:running:lock"), "it runs")
        own_server.signal(signal.SIGSTOP)
        app.consumer.stop(force=True)
        app.greenlet.join(30)
        assert app.greenlet.value is True
        own_server.signal(signal.SIGCONT)
        waiting, taken = items(client), items(client, "mail:processing")
        assert sorted(waiting + taken) == [b"parked", b"running"]
        if b"running" in taken:
            assert client.hexists("emq:mail:held", "running")


def test_a_handler_that_outlives_a_forced_end_keeps_its_lock(app, client, wait_until):
    let_go, running = gevent.event.Event(), []

    def handler(item):
        running.append(item)
        while not let_go.is_set():
            try:
                let_go.wait()
            except gevent.GreenletExit:
                client.set("swallowed", 1)

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: running, "it runs")
    app.consumer.stop(force=True)
    app.greenlet.join(30)
    assert app.greenlet.value is False
    assert client.exists("swallowed", "emq:mail:one:lock") == 2
    assert items(client, "mail:processing") == [b"one"]
    let_go.set()
    wait_until(lambda: nothing_left(client), "it ends as it would have")


def test_a_job_that_had_not_begun_when_the_end_was_forced_goes_back(app, client):
    ran = []
    app.plugin.start()
    consumer = Consumer(app.plugin, "mail", ran.append, job_id=bytes.decode)
    client.lpush("mail:processing", "one")
    consumer.stop(force=True)
    assert consumer._start(b"one") is True
    assert consumer._drain() is True
    consumer.close()
    assert ran == []
    assert items(client) == [b"one"]
    assert nothing_left(client) is False
    assert not client.exists("emq:mail:held", "emq:mail:one:lock")


def test_killing_the_greenlet_of_run_puts_its_jobs_back(app, client, wait_until):
    running = []

    def handler(item):
        running.append(item)
        gevent.sleep(60)

    client.lpush("mail", "one")
    app.consume(handler)
    wait_until(lambda: running, "it runs")
    app.greenlet.kill()
    assert items(client) == [b"one"]
    assert not client.exists("mail:processing", "emq:mail:held", "emq:mail:one:lock")


def test_signals_are_handled_as_before_once_the_consumer_has_ended(app, client, wait_until):
    told = []
    before = signal.signal(signal.SIGUSR1, lambda *_: told.append("python"))
    try:
        app.consume(lambda _: None, signals=(signal.SIGUSR1,))
        wait_until(lambda: client.exists("emq:queues"), "it has begun")
        gevent.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        app.greenlet.join(30)
        assert app.greenlet.value is True
        assert told == []
        os.kill(os.getpid(), signal.SIGUSR1)
        wait_until(lambda: told == ["python"], "the old handler is back")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_outside_of_the_main_thread_no_signals_are_handled(make_app, client, server):
    before = signal.getsignal(signal.SIGTERM)

    def in_thread():
        app = make_app(server.url)
        seen = []
        with redis.Redis.from_url(server.url) as own_client:
            own_client.lpush("mail", "one")
        consumer = Consumer(app.plugin, "mail", lambda item: (seen.append(item), consumer.stop()))
        assert consumer.run() is True
        app.plugin.stop(timeout_ms=2_000)
        return seen

    assert gevent.get_hub().threadpool.apply(in_thread) == [b"one"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_where_a_wait_would_hold_up_the_hub_the_list_is_polled(app, client, wait_until, monkeypatch):
    monkeypatch.setattr(reliable_list, "_waits_on_hub", lambda _: False)
    client.config_resetstat()
    seen = []
    app.consume(seen.append)
    wait_until(lambda: "cmdstat_lmove" in client.info("commandstats"), "it polls")
    client.lpush("mail", "one")
    wait_until(lambda: seen and nothing_left(client), "it ran")
    assert "cmdstat_blmove" not in client.info("commandstats")


def test_the_consumer_runs_on_fakeredis(make_app, wait_until):
    fake = fake_redis()
    app = make_app(fake, dedicated_hub=False)
    seen = []
    fake.lpush("mail", "one", "two")
    app.consume(seen.append)
    wait_until(lambda: len(seen) == 2 and nothing_left(fake), "both ran")


def test_a_list_has_one_consumer_at_a_plugin_manager(app):
    first = Consumer(app.plugin, "mail", print)
    with pytest.raises(AttachError, match="has a consumer"):
        Consumer(app.plugin, "mail", print)
    first.close()
    first.close()
    Consumer(app.plugin, "mail", print).close()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"concurrency": 0}, OptionError),
        ({"concurrency": True}, OptionError),
        ({"concurrency": 1.5}, OptionError),
        ({"handler": "send"}, OptionError),
        ({"list_key": ""}, OptionError),
        ({"list_key": b"mail"}, OptionError),
        ({"queue": "a:b"}, InvalidNameError),
    ],
    ids=str,
)
def test_arguments_that_cannot_work_are_refused_and_nothing_is_registered(app, changes, error):
    arguments = {"list_key": "mail", "handler": print, "concurrency": 1, "queue": None, **changes}
    before = app.pm.list_name_plugin()
    with pytest.raises(error):
        Consumer(app.plugin, **arguments)
    assert app.pm.list_name_plugin() == before


def test_on_a_cluster_list_and_queue_must_share_a_slot(app, monkeypatch):
    monkeypatch.setattr(Connections, "is_cluster", True)
    tagged = reliable_list.ReliableList(app.plugin.connections, "jobs{mail}")
    tagged.check(QueueKeys("emq", "{mail}"))
    with pytest.raises(ServerUnsuitableError, match="hash tag"):
        tagged.check(QueueKeys("emq", "mail"))


@pytest.mark.parametrize("polls", [False, True], ids=["BLMOVE", "LMOVE"])
def test_a_user_who_may_not_take_items_is_told_what_to_grant(make_app, own_server, monkeypatch, polls):
    if polls:
        monkeypatch.setattr(reliable_list, "_waits_on_hub", lambda _: False)
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~*", "+@all", "-blmove", "-lmove")
    app = make_app(own_server.url.replace("redis://", "redis://worker:secret@"))
    consumer = Consumer(app.plugin, "mail", print)
    with pytest.raises(ServerUnsuitableError, match=r"grant it \+blmove \+lmove"):
        consumer.run(())


def test_a_server_that_cannot_take_items_is_refused(app, client, monkeypatch):
    call = Connections.call

    def without_blmove(self, operation, work, **limits):
        if operation == "take an item":
            return call(self, operation, lambda client: client.execute_command("NOSUCHMOVE", "mail"), **limits)
        return call(self, operation, work, **limits)

    monkeypatch.setattr(Connections, "call", without_blmove)
    consumer = Consumer(app.plugin, "mail", print)
    with pytest.raises(ServerUnsuitableError, match=r"use Redis 6\.2"):
        consumer.run(())


def test_redis_down_at_boot_is_said_and_nothing_is_taken(make_app):
    app = make_app("redis://127.0.0.1:1")
    consumer = Consumer(app.plugin, "mail", print)
    with pytest.raises(RedisCallError):
        consumer.run(())
    assert not app.pm.has_plugin("echomq-list:mail")


@pytest.mark.parametrize(("run_next", "expected"), [(True, [b"new", b"old", b"it"]), (False, [b"it", b"new", b"old"])])
def test_an_item_goes_back_to_the_end_that_was_asked_for(app, client, run_next, expected):
    scripts = ListScripts(app.plugin.connections)
    client.lpush("mail", "old", "new")
    client.lpush("mail:processing", "it")
    assert scripts.put_back("mail:processing", "mail", b"it", run_next=run_next) is True
    assert items(client) == expected
    assert items(client, "mail:processing") == []
    assert scripts.put_back("mail:processing", "mail", b"it", run_next=run_next) is False
    assert items(client) == expected


def test_an_item_stays_where_it_is_when_it_cannot_go_where_it_should(app, client):
    scripts = ListScripts(app.plugin.connections)
    client.set("mail", "no list")
    client.lpush("mail:processing", "it")
    with pytest.raises(RedisCallError, match="WRONGTYPE"):
        scripts.put_back("mail:processing", "mail", b"it", run_next=True)
    with pytest.raises(RedisCallError, match="WRONGTYPE"):
        scripts.put_back_orphans(QueueKeys("emq", "mail"), "mail:processing", "mail", [("it", b"it")])
    assert items(client, "mail:processing") == [b"it"]
