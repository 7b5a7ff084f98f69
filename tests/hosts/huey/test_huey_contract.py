"""Huey keeps the rules of every host, whatever its workers are."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import contract_huey_app
import huey as huey_package
from huey.utils import Error

from echomq_plugin.testing import HostContract

HERE = Path(__file__).parent
IS_OLD = huey_package.__version__.startswith("2.")


class HueyContract(HostContract):
    """Huey's deliveries have no names. Time limits came with Huey 3."""

    queue = "huey.contract"
    can_deliver_again = True
    can_retry = True
    can_give_up = True
    kind = ""
    reliable = ""

    def instance(self):
        instance, run = contract_huey_app.make(self.server.url)
        self.last = run
        return instance, run

    def enqueue(self, name, *, retries=0, time_limit_ms=None):
        instance, run = self.instance()
        task = run.s(name)
        task.retries = retries
        if time_limit_ms is not None:
            task.timeout = time_limit_ms / 1000
        self.tasks = {**getattr(self, "tasks", {}), task.id: instance.serialize_task(task)}
        instance.enqueue(task)
        instance.storage.pool.disconnect()
        return task.id

    def start_worker(self):
        program = str(Path(sys.executable).with_name("huey_consumer"))
        patched = ["-m", "gevent.monkey"] if self.kind == "greenlet" else []
        command = [sys.executable, *patched, program, "contract_huey_app.huey", "-w", "2", "-k", self.kind]
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        return self.spawn(command, PYTHONPATH=path, CONTRACT_RELIABLE=self.reliable)

    def stop(self, worker):
        worker.send_signal(signal.SIGINT)

    def force(self, worker):
        worker.send_signal(signal.SIGTERM)

    def deliver_again(self, job_id):
        self.client.lpush("huey.redis.contract", self.tasks[job_id])

    def is_given_up(self, job_id):
        instance, _ = self.instance()
        data = instance.get(job_id, peek=True)
        instance.storage.pool.disconnect()
        return isinstance(data, Error) and "given up" in data.metadata["error"]


class TestHueyGreenlets(HueyContract):
    """``-k greenlet``, with the storage that keeps taken tasks."""

    kind = "greenlet"
    reliable = "1"
    can_limit_time = not IS_OLD


class TestHueyThreads(HueyContract):
    """``-k thread``."""

    kind = "thread"


class TestHueyProcesses(HueyContract):
    """``-k process``."""

    kind = "process"
    can_limit_time = not IS_OLD
