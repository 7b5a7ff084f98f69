"""
A worker process that holds locks: ``python holder.py <server> <queue> <first id> <how many>``.

It says ``ready`` once it holds them all, ``lost <id> <reason>`` for each loss, and at SIGTERM
``released <how many>`` once every release is answered.
"""

from __future__ import annotations

import signal
import sys

import gevent
import pluggy
import redis
from gevent.event import Event
from redis.sentinel import Sentinel

from echomq_plugin import FinishResult, LockOptions, attach, hookimpl_for

LOCK_MS = 40_000
"""Sentinels whose first election fails need some 8 s more, on a machine that has other things to do."""
OPTIONS = LockOptions(lock_duration=LOCK_MS, lock_renew_time=10_000, stalled_interval=60_000)


def connection(server: str) -> object:
    """Read ``sentinel:<service>:<port>,<port>,…``, ``cluster:<port>`` or a URL."""
    kind, _, rest = server.partition(":")
    if kind == "sentinel":
        service, _, ports = rest.partition(":")
        addresses = [("127.0.0.1", int(port)) for port in ports.split(",")]
        return Sentinel(addresses, socket_timeout=2).master_for(service, socket_timeout=2)
    if kind == "cluster":
        return redis.RedisCluster(host="127.0.0.1", port=int(rest))
    return server


def main() -> None:
    server, queue, first, how_many = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    pm = pluggy.PluginManager("holder")

    class Told:
        @hookimpl_for(pm)
        def echomq_lock_lost(self, lost):
            for lock in lost:
                print("lost", lock.job_id, lock.reason, flush=True)

    pm.register(Told())
    plugin = attach(pm, connection(server), queue, OPTIONS)
    told_to_end = Event()
    gevent.signal_handler(signal.SIGTERM, told_to_end.set)
    plugin.start()
    locks = [plugin.job_start(queue, str(number), delivery=str(number)) for number in range(first, first + how_many)]
    print("ready", flush=True)
    while not told_to_end.wait(0.2):
        pass  # the timer keeps the hub's loop alive
    results = [plugin.job_finish(lock, "completed") for lock in locks]
    # The first call of this thread after a failover may still go to the dead master: that release is repeated.
    assert results.count(FinishResult.UNKNOWN) <= 1, results
    assert plugin.stop(timeout_ms=10_000)
    print("released", len(results) - results.count(FinishResult.LOST), flush=True)


if __name__ == "__main__":
    main()
