"""Jobs for the tests: each tells Redis when it starts and ends."""

from __future__ import annotations

import os
import time

import redis
from rq import Retry, get_current_job

CONNECTION = redis.Redis.from_url(os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:1/0"))


def _told_start() -> str:
    job_id = get_current_job().id
    client = CONNECTION
    if client.incr(f"running:{job_id}") > 1:
        client.set(f"overlapped:{job_id}", 1)
    client.rpush("pids", os.getpid())
    client.set(f"pid:{job_id}", os.getpid())
    client.rpush(f"events:{job_id}", "start")
    return job_id


def _told_end(job_id: str) -> None:
    CONNECTION.rpush(f"events:{job_id}", "end")
    CONNECTION.decr(f"running:{job_id}")


def sleep(seconds: float) -> str:
    job_id = _told_start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)  # short ones, so that an interrupt gets through
    _told_end(job_id)
    return "slept"


def wait_for_key(key: str) -> str:
    job_id = _told_start()
    while not CONNECTION.exists(key):
        time.sleep(0.01)
    _told_end(job_id)
    return "waited"


def sleep_first_time(seconds: float) -> str:
    """Take long at the first run only: the one whose worker is killed."""
    job_id = _told_start()
    if len(CONNECTION.lrange(f"events:{job_id}", 0, -1)) == 1:
        time.sleep(seconds)
    _told_end(job_id)
    CONNECTION.delete(f"running:{job_id}")
    return "done"


def die() -> None:
    _told_start()
    worker = int(os.environ.get("KILL_PPID", "0")) and os.getppid()
    os.kill(worker or os.getpid(), 9)
    time.sleep(60)  # the work-horse dies with its worker, not at once


def fail() -> None:
    job_id = _told_start()
    _told_end(job_id)
    raise ValueError("on purpose")


def fail_times(times: int) -> str:
    job_id = _told_start()
    _told_end(job_id)
    if CONNECTION.llen(f"events:{job_id}") // 2 <= times:
        raise ValueError("on purpose")
    return "done"


def fail_then_wait_for_key(key: str) -> str:
    """Fail at the first run; the second one waits."""
    job_id = _told_start()
    if CONNECTION.llen(f"events:{job_id}") > 1:
        while not CONNECTION.exists(key):
            time.sleep(0.01)
    _told_end(job_id)
    if CONNECTION.llen(f"events:{job_id}") == 2:
        raise ValueError("on purpose")
    return "waited"


def give_back(times: int) -> object:
    job_id = _told_start()
    _told_end(job_id)
    if CONNECTION.llen(f"events:{job_id}") // 2 <= times:
        return Retry(max=times)
    return "done"


def nothing() -> None:
    pass


def has_a_hub() -> bool:
    from gevent._hub_local import get_hub_if_exists

    return get_hub_if_exists() is not None
