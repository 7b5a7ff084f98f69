"""A model of Redis: the commands that the package uses, as Python over dicts. Its scripts: ``model_scripts.py``."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from echomq_plugin.lua_files import lua_script

from .model_scripts import SCRIPTS

NAME_OF_SHA = {lua_script(name).sha: name for name in SCRIPTS}
SHA_OF_BODY = {lua_script(name).body: lua_script(name).sha for name in SCRIPTS}


def word(value: Any) -> str:
    """Every word of a command reaches Redis as bytes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


class ModelServer:
    """
    Keys, values and lives. Time is asked of ``now_ms``.

    ``watch`` is told what the checker of the history has to know: (event, lock key or job id, token).
    """

    def __init__(self, now_ms: Callable[[], int], watch: Callable[..., None] = lambda *_: None) -> None:
        self.now_ms = now_ms
        self.watch = watch
        self.strings: dict[str, tuple[str, int | None]] = {}
        self.hashes: dict[str, dict[str, Any]] = {}
        self.sets: dict[str, set[str]] = {}
        self.loaded: set[str] = set()
        self.forgets = 0

    # -- whole server ------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[Any, Any, Any]:
        return dict(self.strings), copy.deepcopy(self.hashes), copy.deepcopy(self.sets)

    def load(self, snapshot: tuple[Any, Any, Any] | None) -> None:
        """Start again from a snapshot, or from nothing."""
        self.forgets += 1
        self.strings, self.hashes, self.sets = ({}, {}, {}) if snapshot is None else snapshot
        self.loaded = set()

    def execute(self, words: tuple[Any, ...]) -> Any:
        name = words[0]
        if name in ("EVALSHA", "EVAL"):
            return self._evaluate(name, words[1], words[2], words[3:])
        if name == "GET":
            return self.get(words[1])
        if name == "HMGET":
            fields = self.hashes.get(words[1], {})
            return [fields.get(field) for field in words[2:]]
        if name == "HSCAN":
            return self._scan(words[1], int(words[2]))
        if name == "SADD":
            members = self.sets.setdefault(words[1], set())
            added = len(set(words[2:]) - members)
            members.update(words[2:])
            return added
        if name == "SMEMBERS":
            return list(self.sets.get(words[1], ()))
        raise ResponseError(f"unknown command {name!r}")

    def _evaluate(self, name: str, script: str, key_count: int, rest: tuple[Any, ...]) -> Any:
        if name == "EVALSHA":
            if script not in self.loaded:
                raise NoScriptError("No matching script")
            sha = script
        else:
            sha = SHA_OF_BODY[script]
            self.loaded.add(sha)
        return SCRIPTS[NAME_OF_SHA[sha]](self, rest[:key_count], rest[key_count:])

    def _scan(self, key: str, cursor: int) -> tuple[int, list[str]]:
        # Four buckets: like the real one, a scan returns whatever is there all the while, and perhaps what is not.
        fields = [field for field in self.hashes.get(key, {}) if zlib.crc32(field.encode()) % 4 == cursor]
        return (cursor + 1) % 4, fields

    # -- single keys -------------------------------------------------------------------------------------------------

    def get(self, key: str) -> str | None:
        found = self.strings.get(key)
        if found is None:
            return None
        value, end = found
        if end is not None and end <= self.now_ms():
            del self.strings[key]
            return None
        return value

    def left_ms(self, key: str) -> int:
        if self.get(key) is None:
            return -2
        end = self.strings[key][1]
        return -1 if end is None else end - self.now_ms()

    def set(self, key: str, value: Any, life_ms: Any) -> None:
        self.strings[key] = (word(value), self.now_ms() + int(life_ms))

    def delete(self, key: str) -> None:
        self.strings.pop(key, None)

    def hget(self, key: str, field: str) -> Any:
        return self.hashes.get(key, {}).get(field)

    def hset(self, key: str, field: str, value: Any) -> None:
        self.hashes.setdefault(key, {})[field] = value

    def hdel(self, key: str, field: str) -> None:
        fields = self.hashes.get(key)
        if fields is not None:
            fields.pop(field, None)
            if not fields:
                del self.hashes[key]
