"""What must be true of a plugin manager before jobs run through it."""

from __future__ import annotations

import inspect

import pluggy

from echomq_plugin.errors import HookMarkerError, ShadowedHookError
from echomq_plugin.hookspecs import PREFIX, SPECS

OWN_NAME = "echomq"

OURS_ALONE = ("echomq_job_start", "echomq_job_finish")


def check_hooks(pm: pluggy.PluginManager) -> None:
    """
    Check all plugins of a manager. Hooks whose names do not start with ``echomq_`` are not looked at.

    Raises:
        HookMarkerError: a function is named like one of our hooks, but pluggy ignores it, or no such hook exists.
        ShadowedHookError: a plugin could answer in our place whether a job may run.

    """
    for name, plugin in pm.list_name_plugin():
        if plugin is not None and not pm.is_blocked(name):
            _check_markers(pm, name, plugin)
    for hook, relay in list(vars(pm.hook).items()):
        if hook.startswith(PREFIX) and not relay.has_spec():
            for implementation in relay.get_hookimpls():
                if not implementation.optionalhook:
                    raise no_such_hook(implementation.plugin_name, hook)
    for hook in OURS_ALONE:
        relay = getattr(pm.hook, hook, None)
        for implementation in relay.get_hookimpls() if relay is not None else ():
            wraps = implementation.wrapper or implementation.hookwrapper
            if implementation.plugin_name != OWN_NAME and not wraps:
                raise ShadowedHookError(implementation.plugin_name, hook)


def no_such_hook(plugin_name: str, function: str) -> HookMarkerError:
    """Return the error of an implementation of a hook that does not exist."""
    known = ", ".join(sorted(SPECS))
    return HookMarkerError(plugin_name, function, f"there is no such hook; the hooks are {known}")


def _check_markers(pm: pluggy.PluginManager, plugin_name: str, plugin: object) -> None:
    for name in dir(plugin):
        if not name.startswith(PREFIX):
            continue
        function = getattr(plugin, name, None)
        if not inspect.isroutine(function) or pm.parse_hookimpl_opts(plugin, name) is not None:
            continue
        if name in SPECS:
            raise HookMarkerError(
                plugin_name,
                name,
                f"it lacks the marker of project {pm.project_name!r}, so pluggy would ignore it: "
                "mark it with echomq_plugin.hookimpl_for(pm)",
            )
        if any(attribute.endswith("_impl") for attribute in getattr(function, "__dict__", ())):
            # Another project's marker, and a name that is no hook either.
            raise no_such_hook(plugin_name, name)
