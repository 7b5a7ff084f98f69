"""The job that every host runs: it hangs at its first run, whose worker is killed, and ends at once at the second."""

from __future__ import annotations

import json
import os
import time

import redis

HANGS_S = 3600


def run(key: str) -> None:
    """Tell Redis that a run has started, and whether the run before it is still alive; then hang, or end."""
    client = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])
    events = f"bench:{key}"
    earlier = [json.loads(event) for event in client.lrange(events, 0, -1)]
    overlaps = any(is_alive(event["pid"]) for event in earlier if event["event"] == "start")
    client.rpush(events, json.dumps({"event": "start", "pid": os.getpid(), "at": time.time(), "overlaps": overlaps}))
    if not earlier:
        time.sleep(HANGS_S)
    client.rpush(events, json.dumps({"event": "end", "pid": os.getpid(), "at": time.time()}))
    client.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process of this machine still runs."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        pass
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
