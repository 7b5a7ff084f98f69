"""A bare gevent worker for the contract: started under ``python -m gevent.monkey``."""

from __future__ import annotations

import os
import sys

import pluggy

from echomq_plugin import attach
from echomq_plugin.hosts.gevent import Consumer
from echomq_plugin.testing.contract_job import URL_VARIABLE, contract_job


def identify(item: bytes) -> str:
    return item.decode()


def main() -> None:
    plugin = attach(pluggy.PluginManager("contract"), os.environ[URL_VARIABLE], "list")
    Consumer(plugin, "jobs", lambda item: contract_job(item.decode()), concurrency=4, job_id=identify).run()
    plugin.stop(timeout_ms=1_000)
    sys.exit(0)


if __name__ == "__main__":
    main()
