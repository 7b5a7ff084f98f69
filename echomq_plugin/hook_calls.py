"""Calling notification hooks: each implementation by itself, so that no plugin can hide an event from another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pluggy

from echomq_plugin.callers import Caller
from echomq_plugin.log import log_hook_failure


def call_each(
    pm: pluggy.PluginManager, hook: str, arguments: dict[str, Any], caller: Caller, limit_ms: int
) -> Iterator[tuple[Any, BaseException | None]]:
    """
    Call the implementations of a hook one by one, in pluggy's order, as far as the caller iterates.

    Plain pluggy ends at the first that raises. Here it is logged with its plugin's name, and the next one is called.

    Yields:
        what the implementation returned, or None and its error.

    """
    relay = getattr(pm.hook, hook, None)
    if relay is None:
        return
    for implementation in reversed(relay.get_hookimpls()):
        if implementation.wrapper or implementation.hookwrapper:
            continue
        try:
            result = caller.call(_bound(implementation, arguments), limit_ms)
        except BaseException as error:  # a hook may raise anything, and none of it may pass
            log_hook_failure(implementation.plugin_name, hook, error, caller, limit_ms)
            yield None, error
        else:
            yield result, None


def _bound(implementation: pluggy.HookImpl, arguments: dict[str, Any]) -> Callable[[], Any]:
    function = implementation.function
    positional = [arguments[name] for name in implementation.argnames]
    return lambda: function(*positional)
