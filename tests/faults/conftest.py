"""A plugin behind a proxy, on short locks."""

from __future__ import annotations

from collections.abc import Iterator

import pluggy
import pytest
import redis

from echomq_plugin import LockOptions, LockPlugin, attach, hookimpl_for
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.lua_files import lua_script
from echomq_plugin.scripts import Scripts
from echomq_plugin.sweep_scripts import SweepScripts
from faults.proxy import FaultProxy

LOCK_MS = 3_000
"""Lock duration in these tests: a tick every 750 ms, a call limit of 500 ms."""

OPTIONS = LockOptions(lock_duration=LOCK_MS, stalled_interval=1_000)


class Recorder:
    """Writes down what the hooks are told."""

    def __init__(self, pm: pluggy.PluginManager) -> None:
        self.lost: list[tuple[str, str, str]] = []
        self.lost_locks: list[object] = []
        self.renewed: list[str] = []
        self.batches: list[tuple[str, ...]] = []
        self.failed: list[BaseException] = []
        self.failed_ids: list[tuple[str, ...]] = []
        self.at_risk_in_ms: list[int] = []
        self.check_failed: list[BaseException] = []
        self.stalled: list[object] = []
        self.recovered: list[object] = []
        self.abandoned: list[object] = []
        self.put_back: object = None
        for name in dir(type(self)):
            if name.startswith("echomq_"):
                hookimpl_for(pm)(getattr(type(self), name))

    def echomq_lock_lost(self, queue, lost):
        self.lost += [(queue, lock.job_id, lock.reason) for lock in lost]
        self.lost_locks += lost

    def echomq_locks_renewed(self, job_ids):
        self.renewed += job_ids
        self.batches.append(job_ids)

    def echomq_renewal_failed(self, job_ids, error, at_risk_in_ms):
        self.failed.append(error)
        self.failed_ids.append(job_ids)
        self.at_risk_in_ms.append(at_risk_in_ms)

    def echomq_check_failed(self, error):
        self.check_failed.append(error)

    def echomq_job_stalled(self, job):
        self.stalled.append(job)
        return self.put_back(job) if callable(self.put_back) else self.put_back

    def echomq_job_recovered(self, job):
        self.recovered.append(job)

    def echomq_job_abandoned(self, job):
        self.abandoned.append(job)


@pytest.fixture
def proxy(server: EmbeddedServer, client: redis.Redis) -> Iterator[FaultProxy]:
    for name in {*Scripts.names, *SweepScripts.names}:
        client.script_load(lua_script(name).body)  # else the first call of each is two: EVALSHA, then EVAL
    with FaultProxy(server.port) as running:
        yield running


@pytest.fixture
def pm() -> pluggy.PluginManager:
    return pluggy.PluginManager("shop")


@pytest.fixture
def recorder(pm: pluggy.PluginManager) -> Recorder:
    recording = Recorder(pm)
    pm.register(recording, "recorder")
    return recording


@pytest.fixture
def plugin(proxy: FaultProxy, pm: pluggy.PluginManager, recorder: Recorder) -> Iterator[LockPlugin]:
    attached = attach(pm, proxy.url, "mail", OPTIONS)
    attached.start()
    yield attached
    proxy.clear()
    attached.stop(timeout_ms=0)
