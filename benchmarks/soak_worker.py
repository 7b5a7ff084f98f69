"""
One worker process of the soak: hundreds of jobs at a time, each under its lock, and a log of what it believed when.

``python -m benchmarks.soak_worker <server> <server without faults> <host> <log> <jobs at a time>``
"""

from __future__ import annotations

if __name__ == "__main__":
    from gevent import monkey

    monkey.patch_all()

import os
import random
import sys
import time
from collections import deque
from typing import IO

import gevent
import pluggy
import redis
from gevent.pool import Pool

from echomq_plugin import (
    FinishResult,
    Lock,
    LockHeldError,
    LockOptions,
    StartUndecidedError,
    attach,
    hookimpl_for,
)
from echomq_plugin.clocks import SystemClock
from echomq_plugin.keys import QueueKeys
from echomq_plugin.log import logger

QUEUE = "soak"
TODO, DONE = "todo", "done"
OPTIONS = LockOptions(lock_duration=10_000, lock_renew_time=4_000, stalled_interval=10_000, max_stalled_count=1_000_000)
KEYS = QueueKeys("emq", QUEUE)
JOB_S = (10.0, 50.0)


def taken_list(pid: int) -> str:
    """Where a worker keeps what it has taken and not started yet: its parent puts that back should it die."""
    return f"taken:{pid}"


class Worker:
    def __init__(self, server: str, direct: str, host: str, log: IO[str]) -> None:
        self.log = log
        self.clock = SystemClock()
        self.host = redis.Redis.from_url(host, decode_responses=True, max_connections=10_000)
        self.direct = direct
        self.taken = taken_list(os.getpid())
        self.renewed_at: dict[str, int] = {}
        self.lost: set[str] = set()
        self.to_check: deque[tuple[str, str, int]] = deque()
        pm = pluggy.PluginManager("soak")
        marked = hookimpl_for(pm)
        worker = self

        class Host:
            @marked
            def echomq_lock_lost(self, lost):
                for lock in lost:
                    worker.note_loss(lock)

            @marked
            def echomq_job_stalled(self, job):
                # Hooks may be called on a native thread, where this hub's connections cannot be used.
                with redis.Redis.from_url(host) as own:
                    own.rpush(TODO, job.delivery)
                worker.note("back", job.job_id)
                return True

        pm.register(Host())
        self.plugin = attach(pm, server, QUEUE, OPTIONS)

    def note(self, *words: object) -> None:
        print(self.clock.now_ms(), *words, file=self.log, flush=True)

    def note_loss(self, lock) -> None:
        self.lost.add(lock.token)
        trusted_until = self.renewed_at.get(lock.token, self.clock.now_ms()) + OPTIONS.lock_duration
        self.note("lost", lock.job_id, lock.token, lock.reason, min(trusted_until, self.clock.now_ms()))
        if lock.reason != "expired":
            self.to_check.append((lock.job_id, lock.token, trusted_until))

    def check_losses(self) -> None:
        """Ask the server itself about each loss, until it answers; an answer after the lock's end tells nothing."""
        own = redis.Redis.from_url(self.direct, socket_timeout=1, decode_responses=True)
        while True:
            gevent.sleep(0.05)
            while self.to_check:
                job_id, token, trusted_until = self.to_check[0]
                try:
                    holder = own.get(KEYS.lock(job_id))
                except redis.RedisError:
                    break
                self.to_check.popleft()
                if holder == token:
                    self.note("invented", job_id, token)
                elif self.clock.now_ms() < trusted_until:
                    self.note("checked", job_id, token)

    def watch_renewals(self) -> None:
        """Keep the time of the last confirmed renewal of each lock: until when it was trusted."""
        table = self.plugin.manager._state().table
        while True:
            with table.lock:
                now = [(lock.job_id, lock.token, lock.renewed_at) for lock in table.tracked._locks.values()]
            for job_id, token, renewed_at in now:
                if self.renewed_at.get(token) != renewed_at:
                    self.renewed_at[token] = renewed_at
                    self.note("renewed", job_id, token, renewed_at)
            gevent.sleep(0.1)

    def consume(self, how_many: int) -> None:
        pool = Pool(how_many)
        while True:
            pool.wait_available()
            delivery = self.host.blmove(TODO, self.taken, 1, "LEFT", "RIGHT")
            if delivery is not None:
                pool.spawn(self.handle, delivery)

    def handle(self, delivery: str) -> None:
        try:
            lock = self.plugin.job_start(QUEUE, delivery, delivery=delivery)
        except LockHeldError as held:
            if held.same_delivery:
                self.host.lrem(self.taken, 1, delivery)
            else:
                self.put_back(delivery, held.retry_in_ms)
        except StartUndecidedError:
            self.put_back(delivery, 1_000)
        else:
            self.renewed_at[lock.token] = self.clock.now_ms()
            self.note("begin", delivery, lock.token)
            self.host.lrem(self.taken, 1, delivery)
            self.run(delivery, lock)

    def put_back(self, delivery: str, pause_ms: int) -> None:
        gevent.sleep(pause_ms / 1000)
        with self.host.pipeline() as both:
            both.rpush(TODO, delivery).lrem(self.taken, 1, delivery).execute()

    def run(self, delivery: str, lock: Lock) -> None:
        until = time.monotonic() + random.uniform(*JOB_S)
        while time.monotonic() < until and lock.token not in self.lost:
            gevent.sleep(1)
        ours = lock.confirm_in_time()
        if ours:
            self.host.sadd(DONE, delivery)
        self.note("end", delivery, lock.token)
        result = self.plugin.job_finish(lock, "completed" if ours else "interrupted")
        if result is not FinishResult.RELEASED:
            self.note("finish", delivery, lock.token, result.value)
        self.renewed_at.pop(lock.token, None)


def main() -> None:
    server, direct, host, log, how_many = sys.argv[1:]
    logger.disabled = True
    with open(log, "a") as file:
        worker = Worker(server, direct, host, file)
        while True:
            try:
                worker.plugin.start()
                break
            except Exception:  # the server is in trouble just now
                gevent.sleep(0.3)
        gevent.spawn(worker.watch_renewals)
        gevent.spawn(worker.check_losses)
        worker.consume(int(how_many))


if __name__ == "__main__":
    main()
