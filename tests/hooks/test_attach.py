"""attach: on anybody's manager, harmless when repeated, and an error where jobs would run unlocked or hooks unheard."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pluggy
import pytest
import redis

from echomq_plugin import LockOptions, attach, hookimpl, hookimpl_for
from echomq_plugin.errors import (
    AttachError,
    ConnectionKindError,
    HookMarkerError,
    InvalidNameError,
    LockHeldError,
    ShadowedHookError,
)
from echomq_plugin.hookspecs import SPECS
from echomq_plugin.testing import FakeClock, RecordingPlugin
from hooks.conftest import TICK

URL = "redis://127.0.0.1:1/0"  # nothing listens there: attaching must not connect


def lost(pm: pluggy.PluginManager) -> list[Any]:
    return pm.hook.echomq_lock_lost(queue="mail", lost=())


# -- any manager -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("project", ["myapp", "my-app", "echomq", "pytest", "Ünï cödé", "x" * 200])
def test_any_project_name_will_do(project: str, connection: Any) -> None:
    pm = pluggy.PluginManager(project)
    attach(pm, connection, "mail", LockOptions(dedicated_hub=False))
    heard = RecordingPlugin(pm)
    pm.register(heard)

    lost(pm)

    assert heard.of("echomq_lock_lost") == [{"queue": "mail", "lost": ()}]
    assert {name for name in vars(pm.hook) if name.startswith("echomq_")} == set(SPECS)


def test_the_marker_of_a_manager_is_its_projects(pm: pluggy.PluginManager) -> None:
    assert hookimpl_for(pm).project_name == "someones-app"


def test_attaching_makes_no_connection_and_starts_nothing(pm: pluggy.PluginManager) -> None:
    plugin = attach(pm, URL, "mail")

    assert plugin.stop() is True
    assert plugin.connections._clients == {}


def test_hooks_that_a_host_has_specified_itself_to_document_them_are_kept(pm: pluggy.PluginManager) -> None:
    specification = pluggy.HookspecMarker("someones-app")

    class Documented:
        @specification
        def echomq_lock_lost(self, queue: str, lost: tuple[Any, ...]) -> None: ...

        @specification
        def echomq_of_the_hosts_own(self, thing: int) -> None: ...

    class Host:
        @hookimpl_for(pm)
        def echomq_of_the_hosts_own(self, thing: int) -> int:
            return thing

    pm.add_hookspecs(Documented)
    pm.register(Host())

    attach(pm, URL, "mail")

    assert pm.hook.echomq_of_the_hosts_own(thing=3) == [3]


def test_hooks_of_the_host_without_a_specification_are_its_own_business(
    pm: pluggy.PluginManager, marker: pluggy.HookimplMarker
) -> None:
    class Host:
        @marker
        def app_started(self, when: int) -> None: ...

    pm.register(Host())

    attach(pm, URL, "mail")


# -- repeated ----------------------------------------------------------------------------------------------------------


def test_attaching_again_adds_a_queue_to_the_same_plugin(pm: pluggy.PluginManager, connection: Any) -> None:
    options = LockOptions(lock_duration=20_000)
    first = attach(pm, connection, "mail", options)

    assert attach(pm, connection, "video") is first
    assert attach(pm, connection, "mail", options) is first
    assert attach(pm, lambda: connection, "mail") is first
    assert first.queues == ["mail", "video"]


def test_another_client_of_the_same_server_is_the_same_connection(pm: pluggy.PluginManager) -> None:
    first = attach(pm, URL, "mail")

    assert attach(pm, "redis://127.0.0.1:1/0", "mail") is first
    assert attach(pm, redis.Redis("127.0.0.1", 1, client_name="mine", protocol=3), "mail") is first


def test_what_is_not_written_is_what_redis_py_takes_for_it(pm: pluggy.PluginManager) -> None:
    assert attach(pm, redis.Redis(), "mail") is attach(pm, "redis://", "mail")


@pytest.mark.parametrize(
    ("connection", "options", "what"),
    [
        ("redis://127.0.0.1:2/0", None, "another connection"),
        ("redis://127.0.0.1:1/1", None, "another connection"),
        (URL, LockOptions(lock_duration=20_000), "other options"),
    ],
)
def test_another_connection_or_other_options_are_refused(
    pm: pluggy.PluginManager, connection: str, options: LockOptions | None, what: str
) -> None:
    first = attach(pm, URL, "mail")

    with pytest.raises(AttachError, match=what):
        attach(pm, connection, "video", options)

    assert first.queues == ["mail"]


def test_attached_twice_and_loaded_twice_there_is_one_renewer_and_one_report(
    pm: pluggy.PluginManager, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Row 63.
    heard: list[str] = []
    module = _module("their_plugin", heard)
    monkeypatch.setitem(sys.modules, "their_plugin", module)
    monkeypatch.setenv("ECHOMQ_PLUGINS", "their_plugin, their_plugin")
    _entry_points(monkeypatch, their_plugin=module)
    clock = FakeClock()
    options = LockOptions(dedicated_hub=False)
    plugin = attach(pm, connection, "mail", options, clock=clock)
    assert attach(pm, connection, "mail") is plugin
    plugin.start()
    plugin.start()
    try:
        pm.hook.echomq_job_start(queue="mail", job_id="42", delivery=None, payload=None, token=None)
        clock.advance(TICK)
        connection.delete("emq:mail:42:lock")
        clock.advance(TICK)
        _until(lambda: len(heard) >= 1)
        clock.advance(TICK)
    finally:
        plugin.stop(timeout_ms=0)

    assert heard == ["their_plugin"]


# -- detached ----------------------------------------------------------------------------------------------------------


def test_after_detaching_the_manager_is_as_before_and_can_be_attached_again(
    pm: pluggy.PluginManager, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _entry_points(monkeypatch, theirs=_module("theirs", []))
    by_hand = RecordingPlugin(pm)
    pm.register(by_hand, "by hand")
    plugin = attach(pm, connection, "mail")
    assert pm.has_plugin("theirs")

    plugin.detach(pm)

    assert [name for name, _ in pm.list_name_plugin()] == ["by hand"]
    assert attach(pm, connection, "video") is not plugin
    assert pm.has_plugin("theirs")


# -- what would not work ---------------------------------------------------------------------------------------------


def _plugin(**functions: Any) -> Any:
    return type("TheirPlugin", (), functions)()


def _lock_lost(self: object, queue: str, lost: tuple[Any, ...]) -> None: ...


WRONG_MARKERS = {
    "none": lambda function: function,
    "of another project": pluggy.HookimplMarker("another-app"),
    "of the library, on a manager that is not": hookimpl,
}


@pytest.mark.parametrize("mark", WRONG_MARKERS.values(), ids=WRONG_MARKERS)
def test_a_hook_that_pluggy_would_ignore_is_an_error(pm: pluggy.PluginManager, mark: Any) -> None:
    def echomq_lock_lost(self: object, queue: str, lost: tuple[Any, ...]) -> None: ...

    pm.register(_plugin(echomq_lock_lost=mark(echomq_lock_lost)), "theirs")

    with pytest.raises(HookMarkerError, match=r"'theirs' has 'echomq_lock_lost'.*hookimpl_for\(pm\)") as caught:
        attach(pm, URL, "mail")

    assert (caught.value.plugin_name, caught.value.function) == ("theirs", "echomq_lock_lost")
    assert [name for name, _ in pm.list_name_plugin()] == ["theirs"]  # nothing half-done


@pytest.mark.parametrize("project", ["someones-app", "another-app", "echomq"])
def test_a_hook_that_does_not_exist_is_an_error_that_names_those_that_do(
    pm: pluggy.PluginManager, project: str
) -> None:
    def echomq_lock_losst(self: object, queue: str) -> None: ...

    pm.register(_plugin(echomq_lock_losst=pluggy.HookimplMarker(project)(echomq_lock_losst)), "theirs")

    with pytest.raises(HookMarkerError, match=r"'echomq_lock_losst': there is no such hook.*echomq_lock_lost,"):
        attach(pm, URL, "mail")


def test_a_misspelt_specname_is_an_error_too(pm: pluggy.PluginManager) -> None:
    def when_lost(self: object, queue: str) -> None: ...

    mark = pluggy.HookimplMarker("someones-app")(specname="echomq_lock_losst")
    pm.register(_plugin(when_lost=mark(when_lost)), "theirs")

    with pytest.raises(HookMarkerError, match="echomq_lock_losst"):
        attach(pm, URL, "mail")


def test_a_right_specname_an_optional_hook_and_other_attributes_are_fine(pm: pluggy.PluginManager) -> None:
    mark = hookimpl_for(pm)

    class Theirs:
        echomq_settings = 3
        echomq_pluggy = pluggy

        def echomq_helper(self) -> None: ...

        @mark(specname="echomq_lock_lost")
        def echomq_on_lost(self, queue: str) -> str:
            return queue

        @mark(optionalhook=True)
        def echomq_of_a_later_version(self, anything: int) -> None: ...

    pm.register(Theirs())

    attach(pm, URL, "mail")

    assert lost(pm).count("mail") == 1


def test_a_hook_with_an_argument_that_does_not_exist_is_an_error(pm: pluggy.PluginManager) -> None:
    class Theirs:
        @hookimpl_for(pm)
        def echomq_lock_lost(self, queue: str, losst: object) -> None: ...

    pm.register(Theirs(), "theirs")

    with pytest.raises(AttachError, match="losst"):
        attach(pm, URL, "mail")

    assert not pm.has_plugin("echomq")


@pytest.mark.parametrize("hook", ["echomq_job_start", "echomq_job_finish"])
def test_a_foreign_answer_to_whether_a_job_may_run_is_refused(pm: pluggy.PluginManager, hook: str) -> None:
    def answer(self: object) -> str:
        return "anything"

    answer.__name__ = hook
    pm.register(_plugin(**{hook: hookimpl_for(pm)(answer)}), "theirs")

    with pytest.raises(ShadowedHookError, match=f"'theirs' implements '{hook}'.*wrapper"):
        attach(pm, URL, "mail")


def test_what_was_registered_after_attaching_is_checked_before_the_first_job(
    pm: pluggy.PluginManager, connection: Any
) -> None:
    plugin = attach(pm, connection, "mail", LockOptions(dedicated_hub=False))

    class Late:
        @hookimpl_for(pm)
        def echomq_job_start(self, job_id: object) -> str:
            return "runs unlocked"

    class Unmarked:
        def echomq_lock_lost(self, queue: str) -> None: ...

    late, unmarked = Late(), Unmarked()
    pm.register(late)
    with pytest.raises(ShadowedHookError):
        plugin.start()
    pm.unregister(late)
    pm.register(unmarked)
    with pytest.raises(HookMarkerError):
        plugin.start()
    assert plugin._started_pids == set()


def test_wrappers_of_start_and_finish_are_welcome(app: Any) -> None:
    seen: list[str] = []

    class Wrapping:
        @hookimpl_for(app.pm)(wrapper=True)
        def echomq_job_start(self, job_id: str):
            seen.append(f"before {job_id}")
            lock = yield
            seen.append(f"after {lock.job_id}")
            return lock

        @hookimpl_for(app.pm)(wrapper=True)
        def echomq_job_finish(self, outcome: str):
            result = yield
            seen.append(f"{outcome}: {result.value}")
            return result

    app.pm.register(Wrapping())
    lock = app.start_job("7")
    app.pm.hook.echomq_job_finish(lock=lock, outcome="completed")

    assert seen == ["before 7", "after 7", "completed: released"]


def test_bad_arguments_leave_the_manager_untouched(pm: pluggy.PluginManager) -> None:
    for connection, queue, error in [
        (object(), "mail", ConnectionKindError),
        (None, "mail", ConnectionKindError),
        ("nonsense", "mail", ConnectionKindError),
        (URL, "a:b", InvalidNameError),
        (URL, "", InvalidNameError),
    ]:
        with pytest.raises(error):
            attach(pm, connection, queue)
    assert pm.list_name_plugin() == []


# -- third-party plugins -----------------------------------------------------------------------------------------------


def _module(name: str, heard: list[str], **more: Any) -> ModuleType:
    module = ModuleType(name)

    def echomq_lock_lost(queue: str, lost: tuple[Any, ...]) -> None:
        heard.append(name)

    module.echomq_lock_lost = hookimpl(echomq_lock_lost)  # type: ignore[attr-defined]
    for attribute, value in more.items():
        setattr(module, attribute, value)
    return module


def _entry_points(monkeypatch: pytest.MonkeyPatch, **plugins: Any) -> None:
    class Found(EntryPoint):
        def load(self) -> Any:
            return plugins[self.name]

    found = [Found(name=name, value="x:y", group="echomq") for name in plugins]
    monkeypatch.setattr(
        sys.modules["echomq_plugin.attach"], "entry_points", lambda group: found if group == "echomq" else []
    )


def test_plugins_of_the_entry_point_group_are_heard_on_any_manager(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    _entry_points(monkeypatch, one=_module("one", heard), two=_module("two", heard))

    attach(pm, URL, "mail")
    lost(pm)

    assert sorted(heard) == ["one", "two"]


def test_a_real_entry_point_is_found(pm: pluggy.PluginManager, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_plugin.py").write_text("def echomq_locks_renewed(job_ids):\n    return list(job_ids)\n")
    metadata = tmp_path / "installed_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-plugin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[echomq]\nreal = installed_plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    attach(pm, URL, "mail")

    # Without any marker: what is loaded by entry point is marked for whatever project the manager has.
    assert ["42"] in pm.hook.echomq_locks_renewed(queue="mail", job_ids=("42",))
    monkeypatch.delitem(sys.modules, "installed_plugin")


def test_plugins_that_the_environment_names_are_heard(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    for name in ("one", "two"):
        monkeypatch.setitem(sys.modules, name, _module(name, heard))
    monkeypatch.setenv("ECHOMQ_PLUGINS", " one ,two,,")

    attach(pm, URL, "mail")
    lost(pm)

    assert sorted(heard) == ["one", "two"]


def test_the_environment_keeps_plugins_out(pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    _entry_points(monkeypatch, one=_module("one", heard))
    monkeypatch.setitem(sys.modules, "two", _module("two", heard))
    monkeypatch.setenv("ECHOMQ_PLUGINS", "two")
    monkeypatch.setenv("ECHOMQ_BLOCKED_PLUGINS", "one,two")

    attach(pm, URL, "mail")
    lost(pm)

    assert heard == []


def test_a_hook_without_a_name_of_its_own_is_heard(pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    module = ModuleType("short")
    module.echomq_lock_lost = lambda queue, lost: heard.append(queue)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "short", module)
    monkeypatch.setenv("ECHOMQ_PLUGINS", "short")

    attach(pm, URL, "mail")
    lost(pm)

    assert heard == ["mail"]


def test_a_module_that_cannot_be_imported_is_named(pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOMQ_PLUGINS", "no_such_module_anywhere")

    with pytest.raises(AttachError, match="ECHOMQ_PLUGINS names 'no_such_module_anywhere'"):
        attach(pm, URL, "mail")

    assert pm.list_name_plugin() == []


def test_an_object_registered_by_hand_is_not_loaded_again(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = RecordingPlugin(pm)
    pm.register(recording, "by hand")
    _entry_points(monkeypatch, again=recording)

    attach(pm, URL, "mail")
    lost(pm)

    assert len(recording.calls) == 1


def test_one_plugin_serves_managers_of_several_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    _entry_points(monkeypatch, one=_module("one", heard))
    for project in ("first", "second", "echomq"):
        pm = pluggy.PluginManager(project)
        attach(pm, URL, "mail")
        lost(pm)

    assert heard == ["one"] * 3


def test_a_third_party_hook_that_does_not_exist_is_an_error(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def echomq_lock_losst(queue: str) -> None: ...

    _entry_points(monkeypatch, theirs=_module("theirs", [], echomq_lock_losst=echomq_lock_losst))

    with pytest.raises(HookMarkerError, match="'theirs' has 'echomq_lock_losst': there is no such hook"):
        attach(pm, URL, "mail")

    assert pm.list_name_plugin() == []


def test_a_third_party_answer_to_whether_a_job_may_run_is_refused(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def echomq_job_start(queue: str) -> str:
        return "runs unlocked"

    _entry_points(monkeypatch, theirs=_module("theirs", [], echomq_job_start=echomq_job_start))

    with pytest.raises(ShadowedHookError, match="theirs"):
        attach(pm, URL, "mail")

    assert pm.list_name_plugin() == []


def test_a_third_party_argument_that_does_not_exist_is_an_error(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def echomq_job_recovered(jobb: object) -> None: ...

    _entry_points(monkeypatch, theirs=_module("theirs", [], echomq_job_recovered=echomq_job_recovered))

    with pytest.raises(AttachError, match="jobb"):
        attach(pm, URL, "mail")

    assert not pm.has_plugin("echomq")


def test_third_party_wrappers_of_start_and_finish_wrap(request: pytest.FixtureRequest, monkeypatch: Any) -> None:
    """Also those of the older kind, which are sent a result object."""
    seen: list[str] = []
    module = ModuleType("wrapping")

    @hookimpl(wrapper=True)
    def echomq_job_start(job_id: str) -> Any:
        seen.append(f"before {job_id}")
        try:
            lock = yield
        except LockHeldError:
            seen.append(f"held {job_id}")
            raise
        seen.append(f"after {lock.job_id}")
        return lock

    @hookimpl(hookwrapper=True)
    def echomq_job_finish(outcome: str) -> Any:
        outer = yield
        seen.append(f"{outcome}: {outer.get_result().value}")

    vars(module).update(echomq_job_start=echomq_job_start, echomq_job_finish=echomq_job_finish)
    monkeypatch.setitem(sys.modules, "wrapping", module)
    monkeypatch.setenv("ECHOMQ_PLUGINS", "wrapping")
    app = request.getfixturevalue("app")

    lock = app.start_job("7")
    with pytest.raises(LockHeldError):
        app.start_job("7")
    assert app.pm.hook.echomq_job_finish(lock=lock, outcome="completed").value == "released"

    assert seen == ["before 7", "after 7", "before 7", "held 7", "completed: released"]


def test_options_of_the_librarys_marker_and_defaults_of_arguments_are_kept(
    pm: pluggy.PluginManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Theirs:
        @property
        def broken(self) -> int:
            raise RuntimeError("looking at a plugin must not run its code")

        @hookimpl(trylast=True)
        def echomq_lock_lost(self, queue: str, mine: str = "default", *rest: object, **more: object) -> None:
            order.append(f"last {mine}")

        @hookimpl(specname="echomq_lock_lost")
        def when_lost(self, lost: tuple[Any, ...]) -> None:
            order.append("first")

    _entry_points(monkeypatch, theirs=Theirs())

    attach(pm, URL, "mail")
    lost(pm)

    assert order == ["first", "last default"]


def _until(condition: Any) -> None:
    import time

    from echomq_plugin.native import pause

    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        pause(0.01)
