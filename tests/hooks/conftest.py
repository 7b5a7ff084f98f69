"""A plugin manager of somebody else's project, and the library on it: on fakeredis, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pluggy
import pytest

from echomq_plugin import LockOptions, LockPlugin, attach, hookimpl_for
from echomq_plugin.testing import FakeClock, RecordingPlugin, fake_redis

PROJECT = "someones-app"
TICK = 7_501


@pytest.fixture
def pm() -> pluggy.PluginManager:
    return pluggy.PluginManager(PROJECT)


@pytest.fixture
def marker(pm: pluggy.PluginManager) -> pluggy.HookimplMarker:
    return hookimpl_for(pm)


@pytest.fixture
def connection() -> Any:
    import fakeredis

    return fake_redis(server=fakeredis.FakeServer())


@dataclass
class App:
    """A host in which jobs run."""

    pm: pluggy.PluginManager
    plugin: LockPlugin
    clock: FakeClock
    connection: Any
    recording: RecordingPlugin

    def start_job(self, job_id: str = "42", **more: Any) -> Any:
        arguments = {"queue": "mail", "delivery": None, "payload": None, "token": None, **more}
        return self.pm.hook.echomq_job_start(job_id=job_id, **arguments)


@pytest.fixture
def app(pm: pluggy.PluginManager, connection: Any) -> Iterator[App]:
    clock = FakeClock()
    options = LockOptions(dedicated_hub=False, hook_limit_ms=300)
    plugin = attach(pm, connection, "mail", options, clock=clock)
    recording = RecordingPlugin(pm, put_back=lambda job: True)
    pm.register(recording, "recording")
    plugin.start()
    yield App(pm, plugin, clock, connection, recording)
    plugin.stop(timeout_ms=0)
