"""
A worker process of the demo: ``python -m gevent.monkey --module echomq_plugin.cli.demo_worker <plan>``.

SIGUSR1 blocks its hub, SIGTERM ends it when its jobs have ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict

import gevent
import pluggy
import redis

from echomq_plugin.attach import attach, hookimpl_for
from echomq_plugin.cli.demo_meter import Meter, MeteredScripts
from echomq_plugin.cli.demo_plan import QUEUE, DemoPlan
from echomq_plugin.cli.demo_runs import note_run
from echomq_plugin.connections import Client
from echomq_plugin.errors import RedisCallError
from echomq_plugin.events import LostLock, StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.hosts.gevent import Consumer, current_lock
from echomq_plugin.hubs import DedicatedHub, Task
from echomq_plugin.native import native_sleep
from echomq_plugin.plugin import LockPlugin

_PUBLISH_MS = 150
_START_TRIES = 10


def hooks(pm: pluggy.PluginManager, meter: Meter) -> HookNamespace:
    """Return the plugin through which the worker learns what happens to its locks."""
    marker = hookimpl_for(pm)

    def echomq_lock_lost(lost: tuple[LostLock, ...]) -> None:
        meter.figures.lost += [f"{lock.job_id} ({lock.reason})" for lock in lost]

    def echomq_job_recovered(job: StalledJob) -> None:
        meter.figures.recovered.append(job.job_id)

    def echomq_job_abandoned(job: StalledJob) -> None:
        meter.figures.troubles.append(f"{job.job_id} was given up")

    def echomq_renewal_failed(error: BaseException) -> None:
        meter.figures.troubles.append(f"renewal failed: {error}")

    def echomq_check_failed(error: BaseException) -> None:
        meter.figures.troubles.append(f"check failed: {error}")

    functions = (
        echomq_lock_lost, echomq_job_recovered, echomq_job_abandoned, echomq_renewal_failed, echomq_check_failed,
    )  # fmt: skip
    return HookNamespace(**{function.__name__: marker(function) for function in functions})


class Publisher:
    """Writes a worker's figures to Redis, from a hub of its own: the app's hub may be blocked."""

    def __init__(self, plan: DemoPlan, plugin: LockPlugin, meter: Meter) -> None:
        self._plan = plan
        self._plugin = plugin
        self._meter = meter
        self._hub = DedicatedHub([Task(self._run)], plugin.connections.close_thread)

    def start(self) -> None:
        """Begin."""
        self._hub.start()

    def stop(self) -> None:
        """Write the last figures, and end."""
        self._hub.stop()
        self.publish()

    def publish(self) -> None:
        """Write the figures once."""
        with self._meter.lock:
            self._meter.figures.locks = self._plugin.manager.get_active_job_count()
            text = json.dumps(asdict(self._meter.figures))

        def write(client: Client) -> None:
            client.execute_command("HSET", self._plan.figures_key, os.getpid(), text)

        try:
            self._plugin.connections.call("publish figures", write)
        except RedisCallError:
            pass  # the next ones say it all

    def _run(self, task: Task) -> None:
        while not task.stopping:
            self.publish()
            task.wait(_PUBLISH_MS)


def work(plan: DemoPlan) -> None:
    """Consume the demo's list until told to stop."""
    meter = Meter()
    pm = pluggy.PluginManager("demo")
    plugin = attach(pm, plan.url, QUEUE, plan.options)
    plugin.manager.scripts = MeteredScripts(plugin.connections, meter)
    pm.register(hooks(pm, meter))
    client = redis.Redis.from_url(plan.url)

    def handle(item: bytes) -> None:
        job, token = json.loads(item), current_lock().token
        meter.run_began(token)
        end = "completed"
        note_run(client, plan.runs_key, job["id"], token, "began")
        try:
            gevent.sleep(job["seconds"])
        except BaseException as error:
            end = type(error).__name__
            raise
        finally:
            note_run(client, plan.runs_key, job["id"], token, end)
            meter.run_ended(token)

    def block_hub() -> None:
        began = meter.now_ms()
        native_sleep(plan.block_ms / 1000)
        meter.figures.blocked_ms += meter.now_ms() - began

    consumer = Consumer(
        plugin, plan.list_key, handle, concurrency=plan.greenlets, job_id=lambda item: json.loads(item)["id"]
    )
    gevent.signal_handler(signal.SIGUSR1, block_hub)
    gevent.spawn(end_with_parent, plan.parent)
    start(plugin)
    publisher = Publisher(plan, plugin, meter)
    publisher.start()
    consumer.run()
    plugin.stop(timeout_ms=5_000)
    publisher.stop()


def start(plugin: LockPlugin) -> None:
    """Start the plugin, and be patient: the machine may be busy with starting all this."""
    for _ in range(_START_TRIES):
        try:
            return plugin.start()
        except RedisCallError:
            gevent.sleep(0.2)
    return plugin.start()


def end_with_parent(parent: int) -> None:
    """End this process once its parent has ended: nobody is left to stop it."""
    while os.getppid() == parent:
        gevent.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    work(DemoPlan.from_text(sys.argv[1]))
