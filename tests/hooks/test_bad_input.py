"""Bad input is a typed error at the door that says what to write instead; nothing is half-done."""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pluggy
import pytest
import redis

from echomq_plugin import LockHeldError, LockManager, LockOptions, StartUndecidedError, attach, errors
from echomq_plugin.embedded import EmbeddedServer, free_port
from echomq_plugin.errors import (
    AttachError,
    ConnectionKindError,
    EchoMQError,
    IdTypeError,
    InvalidIdError,
    InvalidNameError,
    OptionError,
    RedisCallError,
    ServerUnsuitableError,
)
from echomq_plugin.events import LostLock
from echomq_plugin.interrupts import LockLostInterrupt
from hooks.conftest import App

# -- a client of the wrong kind ----------------------------------------------------------------------------------------


def _asyncio_client() -> object:
    import redis.asyncio

    return redis.asyncio.Redis()


WRONG_CLIENTS = {
    "none": (lambda: None, "pass a redis.Redis"),
    "a number": (lambda: 6379, "pass a redis.Redis"),
    "bytes": (lambda: b"redis://localhost", "pass a redis.Redis"),
    "no URL": (lambda: "localhost:6379", "write redis://host:port/db"),
    "a URL of something else": (lambda: "https://localhost", "write redis://host:port/db"),
    "an asyncio client": (_asyncio_client, "an asyncio client cannot be used"),
    "a pool": (redis.ConnectionPool, "pass a redis.Redis"),
    "a callable that returns nothing": (lambda: lambda: None, "pass a redis.Redis"),
}


@pytest.mark.parametrize(("make", "says"), WRONG_CLIENTS.values(), ids=WRONG_CLIENTS)
def test_a_client_of_the_wrong_kind_is_refused_by_all_doors(make: Any, says: str) -> None:
    pm = pluggy.PluginManager("app")
    for door in (lambda connection: LockManager(connection, "mail"), lambda connection: attach(pm, connection, "mail")):
        with pytest.raises(ConnectionKindError, match=says) as caught:
            door(make())
        assert isinstance(caught.value, TypeError)
    assert pm.list_name_plugin() == []


def test_a_class_where_a_client_was_meant_is_called_as_any_callable_is() -> None:
    # redis.Redis, without the parentheses: it is a callable that returns a client.
    assert LockManager(redis.Redis, "mail").connections.server.kind == "node"


# -- jobs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"job_id": None}, IdTypeError),
        ({"job_id": 1.5}, IdTypeError),
        ({"job_id": ""}, InvalidIdError),
        ({"job_id": b"\xff"}, InvalidIdError),
        ({"job_id": "\udcff"}, InvalidIdError),
        ({"job_id": "1", "token": ["x"]}, IdTypeError),
        ({"job_id": "1", "token": ""}, InvalidIdError),
        ({"job_id": "1", "queue": "a:b"}, InvalidNameError),
        ({"job_id": "1", "queue": ""}, InvalidNameError),
        ({"job_id": "1", "queue": None}, InvalidNameError),
        ({"job_id": "1", "delivery": 1.5}, IdTypeError),
        ({"job_id": "1", "delivery": ""}, InvalidIdError),
        ({"job_id": "1", "payload": {"a": 1}}, IdTypeError),
        ({"job_id": "1", "payload": 7}, IdTypeError),
        ({"job_id": "1", "payload": "\ud800"}, InvalidIdError),
    ],
    ids=repr,
)
def test_a_job_that_cannot_be_named_is_not_started_and_nothing_is_written(
    app: App, arguments: dict[str, Any], error: type[EchoMQError]
) -> None:
    before = sorted(app.connection.keys("*"))

    with pytest.raises(error):
        app.start_job(**arguments)

    assert sorted(app.connection.keys("*")) == before
    assert app.plugin.manager.get_active_job_count() == 0
    assert app.start_job("1").believed  # all is as it was


@pytest.mark.parametrize("method", ["track_job", "untrack_job", "is_tracked"])
@pytest.mark.parametrize("bad", [None, "", b"\xff", 1.5])
def test_the_managers_surface_refuses_the_same_ids(method: str, bad: object) -> None:
    manager = LockManager("redis://127.0.0.1:1", "mail")
    arguments = (bad, "token") if method == "track_job" else (bad,)

    with pytest.raises((IdTypeError, InvalidIdError)):
        getattr(manager, method)(*arguments)
    with pytest.raises(InvalidNameError):
        getattr(manager, method)(*("1", "token")[: len(arguments)], queue="a:b")

    assert manager.get_tracked_job_ids() == []


def test_a_delivery_is_named_as_ids_are_so_a_number_and_its_text_are_the_same(app: App) -> None:
    app.start_job("1", delivery=7)
    for again in (7, "7", b"7"):
        with pytest.raises(LockHeldError) as held:
            app.start_job("1", delivery=again)
        assert held.value.same_delivery


@pytest.mark.parametrize("lock", [None, "token"])
def test_what_is_no_lock_cannot_be_given_back(app: App, lock: object) -> None:
    with pytest.raises(OptionError, match="Lock that the start"):
        app.plugin.job_finish(lock, "completed")  # type: ignore[arg-type]


@pytest.mark.parametrize("outcome", ["done", None, []])
def test_an_outcome_that_there_is_none_of_changes_nothing(app: App, outcome: object) -> None:
    lock = app.start_job("1")
    with pytest.raises(OptionError, match="must be one of"):
        app.plugin.job_finish(lock, outcome)  # type: ignore[arg-type]
    assert lock.confirm()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"options": {"lock_duration": 5}}, "must be LockOptions"),
        ({"clock": 5}, "must have now_ms"),
        ({"on_lock_renewal_failed": 5}, "must be a function"),
        ({"on_locks_renewed": "print"}, "must be a function"),
        ({"on_renewal_error": []}, "must be a function"),
    ],
    ids=repr,
)
def test_an_argument_of_another_type_is_refused_before_any_lock_is_lost(arguments: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        LockManager("redis://127.0.0.1:1", "mail", **arguments)


def test_what_cannot_be_attached_to_is_named() -> None:
    with pytest.raises(AttachError, match="pass the host's, or pluggy"):
        attach(None, "redis://127.0.0.1:1", "mail")  # type: ignore[arg-type]
    pm = pluggy.PluginManager("app")
    with pytest.raises(OptionError, match="must be LockOptions"):
        attach(pm, "redis://127.0.0.1:1", "mail", {"lock_duration": 5})  # type: ignore[arg-type]
    assert pm.list_name_plugin() == []


# -- a server that is not there, or cannot serve -----------------------------------------------------------------------


def test_redis_down_at_start_is_said_within_the_call_limit_and_nothing_is_started(pm: pluggy.PluginManager) -> None:
    options = LockOptions(call_limit_ms=500)
    plugin = attach(pm, f"redis://127.0.0.1:{free_port()}/0", "mail", options)
    began = time.monotonic()

    with pytest.raises(RedisCallError, match=r"(?i)refused"):
        plugin.start()
    with pytest.raises(StartUndecidedError, match="put the delivery back"):
        plugin.job_start("mail", "42")

    assert time.monotonic() - began < 30  # a refusal needs no limit; what hangs is in tests/faults
    assert plugin.manager.get_active_job_count() == 0
    assert plugin.stop() is True


def test_what_was_down_at_start_can_be_started_later(pm: pluggy.PluginManager, server: EmbeddedServer) -> None:
    where = [f"redis://127.0.0.1:{free_port()}/0"]
    plugin = attach(pm, lambda: where[0], "mail")
    with pytest.raises(RedisCallError):
        plugin.start()
    plugin.detach(pm)

    where[0] = server.url
    plugin = attach(pm, lambda: where[0], "mail")
    plugin.start()
    with plugin.job("42") as lock:
        assert lock.confirm()
    assert plugin.stop() is True


def test_a_server_without_scripting_is_named_at_start(pm: pluggy.PluginManager, binary_for: Any) -> None:
    no_scripts = ["--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""]
    with EmbeddedServer(binary_for("redis-server"), no_scripts) as server:
        plugin = attach(pm, server.url, "mail")
        with pytest.raises(ServerUnsuitableError, match="Lua"):
            plugin.start()
        assert plugin.manager.get_active_job_count() == 0
        assert plugin.stop() is True


def test_a_fakeredis_without_cmsgpack_is_told_how_to_get_it(pm: pluggy.PluginManager) -> None:
    import fakeredis

    plugin = attach(pm, fakeredis.FakeRedis(), "mail", LockOptions(dedicated_hub=False))

    with pytest.raises(ServerUnsuitableError, match=r"echomq_plugin\.testing\.lua_modules\(\)"):
        plugin.start()


# -- nothing ends the renewal greenlet ---------------------------------------------------------------------------------


@pytest.fixture
def hostile(
    server: EmbeddedServer, client: redis.Redis
) -> Iterator[tuple[LockManager, list[BaseException], list[str]]]:
    errors: list[BaseException] = []
    renewed: list[str] = []
    manager = LockManager(
        server.url,
        "mail",
        # A tick is a twentieth of the protocol's; the calls have time on a busy machine.
        lock_duration=6_000,
        lock_renew_time=750,
        on_renewal_error=errors.append,
        on_locks_renewed=renewed.extend,
    )
    manager.start()
    yield manager, errors, renewed
    manager.stop()


@pytest.mark.parametrize("key", ["emq:mail:bad:lock", "emq:mail:stalled", "emq:mail:held"])
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_keys_of_the_wrong_type_end_no_renewal(
    hostile: tuple[LockManager, list[BaseException], list[str]], client: redis.Redis, key: str, kind: str
) -> None:
    manager, reported, renewed = hostile
    if kind == "list":
        client.rpush(key, "x")
    else:
        client.xadd(key, {"a": "b"})
    client.set("emq:mail:good:lock", "token", px=6_000)
    manager.track_job("good", "token")
    manager.track_job("bad", "token")
    client.set("emq:video:1:lock", "token")
    manager.track_job("1", "token", queue="video")
    # The other queue has nothing to do with it. A stalled set that is none costs no renewal: each lock has its own key.
    if key == "emq:mail:stalled":
        _until(lambda: {"good", "1"} <= set(renewed))
    else:
        _until(lambda: any("WRONGTYPE" in str(error) for error in reported) and "1" in renewed)

    client.delete(key)
    client.set("emq:mail:good:lock", "token", px=6_000)
    manager.untrack_job("good")
    manager.track_job("good", "token")
    renewed.clear()
    _until(lambda: "good" in renewed)

    assert manager.is_tracked("good")


def _until(condition: Any) -> None:
    from echomq_plugin.native import pause

    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        pause(0.01)


# -- errors ------------------------------------------------------------------------------------------------------------

ERRORS = {
    name: error
    for name, error in vars(errors).items()
    if inspect.isclass(error) and issubclass(error, EchoMQError) and error.__module__ == errors.__name__
}


def test_all_errors_have_one_root() -> None:
    own = [error for _, error in inspect.getmembers(errors, inspect.isclass) if error.__module__ == errors.__name__]

    assert all(issubclass(error, EchoMQError) for error in own)


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_says_when_it_comes(name: str) -> None:
    text = inspect.getdoc(ERRORS[name]) or ""

    assert name == "EchoMQError" or text.split()[0] in ("Raised", "Logged", "Reported"), text


def test_messages_say_what_to_do_instead_and_errors_arrive_whole_from_another_process() -> None:
    lost = LostLock("42", "t", "taken", 5)
    messages = {
        "must be": errors.OptionError("lock_duration", -1, "must be greater than 0"),
        "'%3A'": errors.InvalidNameError("queue", "a:b", "must not contain ':', write it as '%3A'"),
        "must not": errors.InvalidIdError("job_id", "", "must not be empty"),
        "pass text": errors.IdTypeError("job_id", 1.5),
        "pass a": errors.ConnectionKindError(3, "pass a redis.Redis"),
        "pip install": errors.MissingExtraError("cli", "the command"),
        "put it back and try again in 70 ms": errors.LockHeldError("q", "1", same_delivery=False, retry_in_ms=70),
        "drop this delivery": errors.LockHeldError("q", "1", same_delivery=True, retry_in_ms=70),
        "put the delivery back": errors.StartUndecidedError("q", "1"),
        "write nothing yet": errors.OwnershipUnknownError("q", "1"),
        "(taken): write no result": errors.LockLostError("q", "1", lost),
        "is lost: write no result": errors.LockLostError("q", "1", None),
        "hand long work": errors.HookTimeLimitError(50),
        "implement echomq_job_stalled and return True": errors.NobodyPutBackError("q", "1"),
        "wrapper=True": errors.ShadowedHookError("theirs", "echomq_job_start"),
    }

    for says, error in messages.items():
        assert says in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)


def test_the_interrupt_of_a_lost_job_can_be_stored_as_any_error() -> None:
    interrupt = LockLostInterrupt(LostLock("42", "t", "taken", 5))

    again = pickle.loads(pickle.dumps(interrupt))

    assert (again.lost, str(again)) == (interrupt.lost, str(interrupt))
