"""TakesJobs: how a worker of many slots gets its jobs. While no slot is free nothing is taken; no pop is cut off."""

from __future__ import annotations

import time
import uuid
from collections import deque
from typing import Any, Final

import gevent
import redis.exceptions
from rq.exceptions import DequeueTimeout
from rq.job import Job
from rq.queue import Queue
from rq.worker import SimpleWorker, WorkerStatus

from echomq_plugin.hosts.rq import deliveries
from echomq_plugin.hosts.rq.locking import LockedJobs
from echomq_plugin.lua_files import lua_script

try:
    from rq.worker.base import StopRequested
except ImportError:  # RQ before 3.0
    from rq.worker import StopRequested

MOST_AT_ONCE: Final = 8
"""How many jobs one call takes: few, for they are without a lock until their greenlets run."""

_POLL_S: Final = 1
"""How long a pop may wait: a stop is seen after it, and never cuts it off with a job in its hands."""
_LOOK_S: Final = 1.0
_NOTE_KEPT_MS: Final = 3_600_000
"""How long Redis remembers which jobs a call took, should its answer be lost."""
_BURST_LOOK_S: Final = 0.05


class TakesJobs(LockedJobs, SimpleWorker):
    """The part of GeventWorker that RQ's own work loop asks for the next job."""

    _jobs: Any
    _changed: Any
    _free: Any
    _failure: BaseException | None = None
    _paused_until = 0.0
    _next_look = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._taken: deque[Job] = deque()
        self._unread: list[str] = []
        self._note, self._note_read = "", ""
        super().__init__(*args, **kwargs)

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """Return the next job once a slot is free; None when there is none and none runs (burst, longest idle time)."""
        idle_since = time.monotonic()
        wait_s = 1.0
        while True:
            self._stop_if_asked()
            if self._free.locked() or time.monotonic() < self._paused_until:
                self._wait_for_change()
                continue
            try:
                if not self._taken:  # what is taken has left its queue, and RQ fails it there after a minute
                    self._look_for_suspension(timeout is None)
                self.heartbeat()
                if self.should_run_maintenance_tasks:
                    self.run_maintenance_tasks()
                result = self._pop(None if timeout is None else _POLL_S)
                if result is None and not self._jobs and self._state != WorkerStatus.IDLE:
                    self.set_state(WorkerStatus.IDLE)
            except (redis.exceptions.RedisError, OSError) as error:
                self.log.error("Worker %s: no answer from Redis (%s), again in %d s", self.name, error, wait_s)
                gevent.sleep(wait_s)
                wait_s = min(wait_s * self.exponential_backoff_factor, self.max_connection_wait_time)
                continue
            if result is not None:
                return result
            if self._jobs:
                idle_since = time.monotonic()
                if timeout is None:
                    self._wait_for_change(_BURST_LOOK_S)
            elif timeout is None or (max_idle_time is not None and time.monotonic() - idle_since >= max_idle_time):
                return None

    def check_for_suspension(self, burst: bool) -> None:
        """Not in RQ's own loop, which an error would end; before jobs are taken, once a second and not once a job."""

    def run_maintenance_tasks(self) -> None:
        """Do RQ's own sweeping; without an answer, again later. The worker and its jobs go on."""
        try:
            super().run_maintenance_tasks()
        except (redis.exceptions.RedisError, OSError) as error:
            self.log.warning("Worker %s: maintenance of queues put off (%s)", self.name, error)

    def _look_for_suspension(self, burst: bool) -> None:
        if time.monotonic() >= self._next_look:
            super().check_for_suspension(burst)
            self._next_look = time.monotonic() + _LOOK_S

    def _stop_if_asked(self) -> None:
        if self._failure is not None:
            error, self._failure = self._failure, None
            raise error
        if self._stop_requested:
            raise StopRequested

    def _pop(self, timeout: int | None) -> tuple[Job, Queue] | None:
        self.get_redis_server_version()  # asked for once, with no job in hand
        if self._taken or self._take_some():
            return self._named(self._taken.popleft(), self.queues[0])
        try:
            result = self.queue_class.dequeue_any(
                self._ordered_queues,
                timeout,
                connection=self.connection,
                job_class=self.job_class,
                serializer=self.serializer,
                death_penalty_class=self.death_penalty_class,
            )
        except DequeueTimeout:
            return None
        if result is None:
            return None
        job, queue = result
        self.reorder_queues(reference_queue=queue)
        return self._named(job, queue)

    def _named(self, job: Job, queue: Queue) -> tuple[Job, Queue]:
        job.redis_server_version = self.get_redis_server_version()
        self.log.info("Worker %s: %s: %s (%s)", self.name, queue.name, job.description, job.id)
        return job, queue

    def _take_some(self) -> bool:
        """Take several jobs in one round trip, and read them in another. Only one queue allows it without a loss."""
        self._put_back_unread()
        room = min(self._free.counter, MOST_AT_ONCE)
        if (room < 2 and not self._note) or len(self.queues) != 1 or self.get_redis_server_version() < (6, 2, 0):
            return False
        try:
            ids = self._take_ids(room)
        except redis.exceptions.NoPermissionError:
            self._note = ""  # no scripts here: one at a time, in RQ's own way
            return False
        self._unread = ids
        try:
            jobs = self.job_class.fetch_many(ids, connection=self.connection, serializer=self.serializer) if ids else []
        except BaseException:
            # One of them cannot be read: RQ's own way of taking one at a time says which. Or there is no answer.
            self._put_back_unread()
            return False
        self._unread = []
        self._taken.extend(job for job in jobs if job is not None)
        return bool(self._taken)

    def _take_ids(self, most: int) -> list[str]:
        """Take ids. Without an answer the next call, or the driver by itself, asks for the same ones again."""
        queue, script = self.queues[0], lua_script("takeJobs-4")
        self._note = self._note or f"{queue.intermediate_queue_key}:{uuid.uuid4().hex}"
        keys = [queue.key, queue.intermediate_queue_key, self._note, self._note_read or self._note + "-"]
        ids = self.connection.register_script(script.body)(keys, [most, _NOTE_KEPT_MS])
        self._note, self._note_read = "", self._note
        return [job_id.decode() for job_id in ids]

    def _put_back_unread(self) -> None:
        while self._unread:
            deliveries.put_back_id(self._unread[-1], self.queues[0], at_front=True)
            self._unread.pop()

    def put_back_taken(self) -> None:
        """Give back what no greenlet has begun: the worker stops."""
        try:
            if self._note:
                self._unread += self._take_ids(0)
            self._put_back_unread()
            if self._note_read:
                self.connection.delete(self._note_read)
        except (redis.exceptions.RedisError, OSError) as error:
            self.log.error("Worker %s: jobs %s cannot be put back (%s)", self.name, self._unread, error)
        while self._taken:
            self._put_back(self._taken.pop(), self.queues[0], at_front=True)

    def _wait_for_change(self, limit_s: float = _LOOK_S) -> None:
        pause_s = self._paused_until - time.monotonic()
        self._changed.wait(min(limit_s, pause_s) if pause_s > 0 else limit_s)
        self._changed.clear()

    def pause_deliveries(self, ms: int) -> None:
        """Take no delivery for a while; jobs that run go on."""
        self._paused_until = max(self._paused_until, time.monotonic() + ms / 1000)
