"""RQ keeps the rules of every host, with work-horses, without, and with many jobs at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import redis
from rq import Queue, Retry
from rq.job import Job, JobStatus

from echomq_plugin.testing import HostContract

ROOT = Path(__file__).parents[3]


class RQContract(HostContract):
    queue = "default"
    can_deliver_again = True
    drops_same_delivery = True
    can_retry = True
    can_limit_time = True
    can_give_up = True
    worker_class = "LockedWorker"

    @pytest.fixture(autouse=True)
    def _connection(self, _world):
        with redis.Redis.from_url(self.server.url) as self.connection:
            yield

    def enqueue(self, name, *, retries=0, time_limit_ms=None):
        return (
            Queue(connection=self.connection)
            .enqueue(
                "echomq_plugin.testing.contract_job.contract_job",
                name,
                retry=Retry(max=retries) if retries else None,
                job_timeout=time_limit_ms // 1000 if time_limit_ms else 600,
            )
            .id
        )

    def start_worker(self):
        rq = str(Path(sys.executable).with_name("rq"))
        worker_class = f"echomq_plugin.hosts.rq.{self.worker_class}"
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return self.spawn([rq, "worker", "-w", worker_class, "--url", self.server.url], PYTHONPATH=path)

    def deliver_again(self, job_id):
        Queue(connection=self.connection).push_job_id(job_id)

    def is_given_up(self, job_id):
        return Job.fetch(job_id, connection=self.connection).get_status() == JobStatus.FAILED

    def force(self, worker):
        worker.send_signal(signal.SIGTERM)
        time.sleep(1.1)  # RQ takes a second signal within a second for the same one
        worker.send_signal(signal.SIGTERM)


class TestForking(RQContract):
    """LockedWorker: its work-horse is killed, and cannot record that; test_rq_recovery.py proves it."""

    test_a_job_whose_lock_is_taken_writes_nothing = None
    test_a_job_whose_lock_is_deleted_comes_back = None


class TestSimple(RQContract):
    """LockedSimpleWorker."""

    worker_class = "LockedSimpleWorker"


class TestGevent(RQContract):
    """GeventWorker."""

    worker_class = "GeventWorker"
