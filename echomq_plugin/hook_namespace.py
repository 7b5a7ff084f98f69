"""A plugin object made of functions: pluggy wants plugins that it can hash and whose attributes it can walk."""

from __future__ import annotations

from typing import Any


class HookNamespace:
    """
    Holds what it is given as attributes.

    Args:
        attributes: marked hook functions, and whatever their maker wants to find again.

    """

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
