"""A pytest plugin for RQ's own tests: our workers stand where RQ's stood. Used by ``run_rq_suite.py`` only."""

from __future__ import annotations

import sys

import rq
import rq.cli  # whatever imports worker classes must have done so before they are replaced
import rq.worker
import rq.worker_pool

from echomq_plugin.hosts import rq as locked

REPLACED = {"Worker": "LockedWorker", "SimpleWorker": "LockedSimpleWorker", "SpawnWorker": "LockedSpawnWorker"}


def replace() -> list[str]:
    """Replace the stock classes in every module of RQ that has them; return the modules."""
    places = []
    for name, ours in REPLACED.items():
        stock = getattr(rq.worker, name, None)
        if stock is None:
            continue  # the oldest RQ has no SpawnWorker
        for module_name, module in list(sys.modules.items()):
            if module_name.split(".")[0] == "rq" and getattr(module, name, None) is stock:
                setattr(module, name, getattr(locked, ours))
                places.append(f"{module_name}.{name}")
    return places


PLACES = replace()


def pytest_report_header() -> str:
    return "locked workers in " + ", ".join(PLACES)
