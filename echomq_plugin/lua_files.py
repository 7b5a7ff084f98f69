"""Finds the Lua files, in an installed package and in a checkout."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent

# A wheel carries the files inside the package; an editable install finds them beside it.
_CANDIDATES = (_PACKAGE / "lua", _PACKAGE.parent / "lua")


@dataclass(frozen=True, slots=True)
class LuaScript:
    """
    One script.

    Attributes:
        name: the file's name without its ending.
        body: the text.
        sha: what EVALSHA calls it.

    """

    name: str
    body: str
    sha: str


@functools.cache
def lua_script(name: str) -> LuaScript:
    """
    Load a script by the name of its file, without the ending.

    Raises:
        FileNotFoundError: the installation is not complete.

    """
    for folder in _CANDIDATES:
        path = folder / f"{name}.lua"
        if path.is_file():
            body = path.read_text(encoding="utf-8")
            return LuaScript(name, body, hashlib.sha1(body.encode()).hexdigest())  # noqa: S324  # Redis' own naming
    raise FileNotFoundError(f"{name}.lua is missing from {[str(folder) for folder in _CANDIDATES]}: reinstall")
