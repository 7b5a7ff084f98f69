"""attach: put the library on anybody's plugin manager, whatever its project is called."""

from __future__ import annotations

import importlib
import inspect
import os
from importlib.metadata import entry_points
from typing import Any, cast

import pluggy

from echomq_plugin.clocks import Clock
from echomq_plugin.errors import AttachError
from echomq_plugin.events import FinishResult, Outcome
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.hooks_check import OWN_NAME, check_hooks, no_such_hook
from echomq_plugin.hookspecs import FIRST_RESULT, PREFIX, SPECS
from echomq_plugin.job_locks import Cancel
from echomq_plugin.locks import Lock
from echomq_plugin.log import log_plugin
from echomq_plugin.options import LockOptions
from echomq_plugin.plugin import LockPlugin
from echomq_plugin.reports import Side
from echomq_plugin.server_settings import read_settings

ENTRY_POINT_GROUP = "echomq"
PLUGINS_VARIABLE = "ECHOMQ_PLUGINS"
BLOCKED_VARIABLE = "ECHOMQ_BLOCKED_PLUGINS"
LOG_NAME = "echomq-log"

hookimpl = pluggy.HookimplMarker("echomq")
"""Marks implementations in plugins that are loaded by entry point or by ``ECHOMQ_PLUGINS``, whatever the manager."""


def hookimpl_for(pm: pluggy.PluginManager) -> pluggy.HookimplMarker:
    """Return the marker of a manager's project: pluggy ignores implementations with another project's, silently."""
    return pluggy.HookimplMarker(pm.project_name)


def attach(
    pm: pluggy.PluginManager,
    connection: object,
    queue: str,
    options: LockOptions | None = None,
    *,
    cancel: Cancel | None = None,
    clock: Clock | None = None,
    side: Side = "auto",
) -> LockPlugin:
    """
    Attach the library to a plugin manager. No I/O, and nothing is started: ``plugin.start()`` or the first job does.

    Again with the same connection: the queue is added. Third-party plugins of the entry-point group ``echomq`` and of
    ``ECHOMQ_PLUGINS=module,module`` are loaded too; ``ECHOMQ_BLOCKED_PLUGINS=name,name`` keeps some out.

    Args:
        pm: any ``pluggy.PluginManager``.
        connection: see ``LockManager``.
        queue: the queue whose jobs are locked.
        options: durations and limits; by default read from ``ECHOMQ_*``.
        cancel: see ``LockPlugin``.
        clock: see ``LockManager``.
        side: see ``Reports``.

    Raises:
        AttachError: ``pm`` is no plugin manager; another connection, or other options, are attached already; or a
            plugin's hooks would not work.
        OptionError, InvalidNameError, ConnectionKindError: an argument cannot work. Nothing is attached.

    """
    if not isinstance(pm, pluggy.PluginManager):
        raise AttachError(f"{pm!r} is no pluggy.PluginManager: pass the host's, or pluggy.PluginManager('my-app')")
    ours = pm.get_plugin(OWN_NAME)
    if ours is not None:
        plugin: LockPlugin = ours.lock_plugin
        _check_same(plugin, connection, options)
        plugin.add_queue(queue)
        return plugin
    plugin = LockPlugin(pm, connection, queue, options or LockOptions.from_env(), cancel=cancel, clock=clock, side=side)
    try:
        _add_specs(pm)
        pm.register(_implementations(pm, plugin), OWN_NAME)
        if not pm.has_plugin(LOG_NAME) and not pm.is_blocked(LOG_NAME):
            pm.register(log_plugin(pm.project_name), LOG_NAME)
        _load_third_party(pm)
        check_hooks(pm)
    except pluggy.PluginValidationError as error:
        unregister(pm)
        raise AttachError(f"pluggy refuses a plugin, compare its arguments with the hook's: {error}") from error
    except BaseException:
        unregister(pm)
        raise
    return plugin


def unregister(pm: pluggy.PluginManager) -> None:
    """Take the library, its log and the third-party plugins that it loaded out of a manager."""
    for name, plugin in pm.list_name_plugin():
        if name in (OWN_NAME, LOG_NAME) or getattr(plugin, "loaded_by_echomq", False):
            pm.unregister(plugin)


def _check_same(plugin: LockPlugin, connection: object, options: LockOptions | None) -> None:
    attached = plugin.connections
    if connection is not attached.source and not read_settings(connection).leads_where(attached.server):
        raise AttachError(
            "another connection is attached to this manager already: attach a second one to a manager of its own"
        )
    if options is not None and options != plugin.options:
        raise AttachError(
            "other options are attached to this manager already: pass the same ones, or none, to add a queue"
        )


def _add_specs(pm: pluggy.PluginManager) -> None:
    # pluggy refuses a spec that a hook has already; hosts may have added ours to document them.
    marker = pluggy.HookspecMarker(pm.project_name)
    new = {
        name: marker(function, firstresult=name in FIRST_RESULT)
        for name, function in SPECS.items()
        if not getattr(getattr(pm.hook, name, None), "spec", None)
    }
    if new:
        pm.add_hookspecs(cast("type", HookNamespace(**new)))


def _implementations(pm: pluggy.PluginManager, plugin: LockPlugin) -> Any:
    def echomq_job_start(
        queue: str, job_id: object, delivery: str | None, payload: bytes | str | None, token: object | None
    ) -> Lock:
        return plugin.job_start(queue, job_id, delivery, payload, token)

    def echomq_job_finish(lock: Lock, outcome: Outcome) -> FinishResult:
        return plugin.job_finish(lock, outcome)

    marker = hookimpl_for(pm)
    return HookNamespace(
        lock_plugin=plugin,
        echomq_job_start=marker(echomq_job_start, tryfirst=True),
        echomq_job_finish=marker(echomq_job_finish, tryfirst=True),
    )


def _load_third_party(pm: pluggy.PluginManager) -> None:
    blocked = _names(BLOCKED_VARIABLE)
    found: dict[str, Any] = {}
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        if entry_point.name not in blocked:
            found[entry_point.name] = entry_point.load()
    for module_name in _names(PLUGINS_VARIABLE):
        if module_name in blocked:
            continue
        try:
            found[module_name] = importlib.import_module(module_name)
        except ImportError as error:
            raise AttachError(f"{PLUGINS_VARIABLE} names {module_name!r}, which cannot be imported: {error}") from error
    already = {id(getattr(plugin, "wraps", plugin)) for plugin in pm.get_plugins()}
    for name, plugin in found.items():
        # By hand, by entry point and by variable: one plugin acts once.
        if id(plugin) not in already and not pm.has_plugin(name) and not pm.is_blocked(name):
            already.add(id(plugin))
            pm.register(_wrapped(pm, name, plugin), name)


def _wrapped(pm: pluggy.PluginManager, plugin_name: str, plugin: Any) -> Any:
    """Mark a plugin's implementations for the manager's project; options of our own marker are kept."""
    wrapped = HookNamespace(wraps=plugin, loaded_by_echomq=True)
    mark = f"{hookimpl.project_name}_impl"
    for name in dir(plugin):
        # Statically: looking at a foreign attribute must not run its code.
        if not name.startswith(PREFIX) and not hasattr(inspect.getattr_static(plugin, name, None), mark):
            continue
        function = getattr(plugin, name)
        if not inspect.isroutine(function):
            continue
        options = getattr(function, mark, None) or {}
        hook = options.get("specname") or name
        if hook not in SPECS and not options.get("optionalhook"):
            raise no_such_hook(plugin_name, name)
        setattr(wrapped, name, hookimpl_for(pm)(_copied(function), **options))
    return wrapped


def _copied(function: Any) -> Any:
    """Return a function with the arguments that a hook is given, which can be marked without marking the original."""
    names = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    namespace: dict[str, Any] = {"original": function}
    # pluggy looks at the code object: for argument names, not at a signature; and whether a wrapper is a generator.
    call = f"original({', '.join(names)})"
    value = f"(yield from {call})" if inspect.isgeneratorfunction(function) else call
    # A constant name: a lambda's is none.
    exec(f"def copied({', '.join(names)}):\n    return {value}\n", namespace)  # noqa: S102
    copied = namespace["copied"]
    copied.__name__, copied.__qualname__ = function.__name__, function.__qualname__
    return copied


def _names(variable: str) -> list[str]:
    return [name.strip() for name in os.environ.get(variable, "").split(",") if name.strip()]
