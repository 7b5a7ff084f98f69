"""For people who test their own hooks, hosts and apps: a clock that stands still, a plugin that records, fakeredis."""

from __future__ import annotations

from echomq_plugin.testing.clocks import FakeClock
from echomq_plugin.testing.fakes import fake_redis, lua_modules
from echomq_plugin.testing.recording import RecordingPlugin

__all__ = ["FakeClock", "RecordingPlugin", "fake_redis", "lua_modules"]
