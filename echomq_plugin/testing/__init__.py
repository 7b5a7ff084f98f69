"""For people who test their own hooks, hosts and apps: a clock that stands still, a plugin that records, fakeredis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echomq_plugin.testing.clocks import FakeClock
from echomq_plugin.testing.contract_job import contract_job
from echomq_plugin.testing.fakes import fake_redis, lua_modules
from echomq_plugin.testing.recording import RecordingPlugin

if TYPE_CHECKING:
    from echomq_plugin.testing.host_contract import HostContract

__all__ = ["FakeClock", "HostContract", "RecordingPlugin", "contract_job", "fake_redis", "lua_modules"]


def __getattr__(name: str) -> object:
    # It needs pytest, which workers that only run `contract_job` do without.
    if name == "HostContract":
        from echomq_plugin.testing.host_contract import HostContract

        return HostContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
