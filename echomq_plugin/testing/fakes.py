"""fakeredis with the one Lua module that Redis has and fakeredis lacks: cmsgpack."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from echomq_plugin.errors import MissingExtraError

_LUA_FOLDER = Path(__file__).resolve().parent / "lua"

# Lua has no other door for this than the environment, read when a fake server runs its first script. `;;` stands for
# the search path that Lua has anyway.
_SEARCH_PATH = "LUA_PATH"


def lua_modules() -> set[str]:
    """
    Return what to pass as ``lua_modules`` to ``fakeredis.FakeRedis``.

    Also puts the folder of our ``cmsgpack.lua`` into ``LUA_PATH``, where fakeredis' Lua looks for it.
    """
    template = f"{_LUA_FOLDER}/?.lua"
    searched = os.environ.get(_SEARCH_PATH, ";;")
    if template not in searched.split(";"):
        os.environ[_SEARCH_PATH] = f"{template};{searched}"
    return {"cmsgpack"}


def fake_redis(**settings: Any) -> Any:
    """
    Return a ``fakeredis.FakeRedis`` on which all scripts of this package run.

    Use ``LockOptions(dedicated_hub=False)`` with it: a fake server is not made for several native threads.

    Args:
        settings: passed on; two clients of one server need the same ``server=fakeredis.FakeServer()``.

    Raises:
        MissingExtraError: fakeredis, or the Lua that it needs, is not installed.

    """
    try:
        import fakeredis
        import lupa  # noqa: F401  # without it fakeredis has no EVAL, and says so only at the first script
    except ImportError as error:
        raise MissingExtraError("testing", "a fake Redis") from error
    return fakeredis.FakeRedis(**{"lua_modules": lua_modules(), **settings})
