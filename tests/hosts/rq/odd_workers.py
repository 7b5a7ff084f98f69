"""Workers with a fault, or a habit, that a test needs."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from rq.job import Job
from rq.registry import StartedJobRegistry

from echomq_plugin.hosts.rq import LockedWorker

MONITORING_INTERVAL_S = 2
RUN_S = 4 * MONITORING_INTERVAL_S


class CleansAhead(LockedWorker):
    """Sweeps as RQ's worker does, its clock ahead: whatever has sent no heartbeat of late is abandoned."""

    def clean_registries(self) -> None:
        for queue in self.queues:
            # A record lives for the interval and a minute from its last heartbeat.
            StartedJobRegistry(queue=queue).cleanup(timestamp=time.time() + 63 - RUN_S)


if os.environ.get("ODD_WORKER") == "gevent":
    from echomq_plugin.hosts.rq import GeventWorker

    class SlowToEnd(GeventWorker):
        """Its greenlets go on for a while once their lock is given back."""

        def _finish(self, *args: Any) -> None:
            super()._finish(*args)
            time.sleep(1)

    class Refused(GeventWorker):
        """Redis refuses RQ one call for the job called faulty: where, FAULT_AT says."""

        def _refuse(self, where: str, job_id: str) -> None:
            if (where, job_id) == (os.environ.get("FAULT_AT"), "faulty") and self.connection.set("refused", 1, nx=True):
                raise redis.ConnectionError("refused on purpose")

        def prepare_execution(self, job: Job, *args: Any, **kwargs: Any) -> Any:
            self._refuse("before the start is written", job.id)
            execution = super().prepare_execution(job, *args, **kwargs)
            self._refuse("when the start is written", job.id)
            return execution

        def perform_job(self, job: Job, *args: Any, **kwargs: Any) -> bool:
            done = super().perform_job(job, *args, **kwargs)
            self._refuse("when the end is written", job.id)
            return done

        def handle_job_success(self, job: Job, *args: Any, **kwargs: Any) -> Any:
            self._refuse("before the end is written", job.id)
            return super().handle_job_success(job, *args, **kwargs)

        def handle_job_failure(self, job: Job, *args: Any, **kwargs: Any) -> Any:
            if os.environ.get("FAULT_AT") == "before the end is written" and job.id == "faulty":
                raise redis.ConnectionError("still refused")
            return super().handle_job_failure(job, *args, **kwargs)
