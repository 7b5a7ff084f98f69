"""
Run the tests that Huey's package carries, with every Huey instance under locks, and beside it without.

``python tests/hosts/huey/run_hueys_own_tests.py``: exits 0 when locks add no failure. It is not part of the suite.
"""

from __future__ import annotations

import collections
import functools
import json
import subprocess
import sys
import unittest
import uuid

import huey
import redis
from huey.api import Huey

from echomq_plugin import LockOptions
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.hosts.huey import lock_tasks


def use_port(port: int) -> None:
    """Send Huey's own tests, which assume the default port, to another one. Before they are imported."""
    connect = redis.Connection.__init__

    @functools.wraps(connect)
    def connect_elsewhere(self, host="localhost", default_port=6379, **settings):
        asked = settings.pop("port", default_port)
        connect(self, host=host, port=port if asked == 6379 else asked, **settings)

    redis.Connection.__init__ = connect_elsewhere


def lock_every_instance(url: str) -> list[Huey]:
    """Put locks on each instance that is made from now on; each one has keys of its own."""
    locked = []
    make = Huey.__init__

    @functools.wraps(make)
    def make_locked(self, *args, **settings):
        make(self, *args, **settings)
        options = LockOptions(prefix=f"emq-{uuid.uuid4().hex}")
        locked.append(lock_tasks(self, redis.Redis.from_url(url), options=options))

    Huey.__init__ = make_locked
    return locked


def run(mode: str, url: str, port: int) -> None:
    """Run Huey's tests once, in this process; the last line is JSON."""
    use_port(port)
    locked = lock_every_instance(url) if mode == "locked" else []
    suite = unittest.defaultTestLoader.loadTestsFromName("huey.tests")
    stopper = type("Stopping", (unittest.TextTestResult,), {"stopTest": functools.partialmethod(stop_test, locked)})
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2, resultclass=stopper).run(suite)
    bad = [test.id() for test, _ in [*result.failures, *result.errors]]
    jobs = redis.Redis.from_url(url).keys("emq-*:fence")
    skips = collections.Counter(reason for _, reason in result.skipped)
    print(json.dumps({"tests": result.testsRun, "skipped": skips, "bad": bad, "queues_with_locks": len(jobs)}))


def stop_test(self, locked: list, test) -> None:
    """Stop the renewal of a test's instances."""
    unittest.TextTestResult.stopTest(self, test)
    while locked:
        locked.pop().stop(timeout_ms=0)


def main() -> int:
    """Run both, each in a process and on a server of its own."""
    results = {}
    for mode in ("stock", "locked"):
        with EmbeddedServer() as server:
            command = [sys.executable, __file__, mode, server.url, str(server.port)]
            output = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        try:
            results[mode] = json.loads(output.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            print(output.stdout[-3000:], output.stderr[-3000:])
            return 1
        print(mode, json.dumps(results[mode]))
        if mode == "locked":
            print(output.stderr[-6000:] if results[mode]["bad"] else "")
    new = sorted(set(results["locked"]["bad"]) - set(results["stock"]["bad"]))
    print(json.dumps({"host": "huey", "version": huey.__version__, "new_failures": new}))
    return 1 if new else 0


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        raise SystemExit(main())
