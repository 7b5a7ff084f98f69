"""The app of a Dramatiq worker for the contract: the actor that runs the contract's job."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from echomq_plugin.hosts.dramatiq import LockMiddleware
from echomq_plugin.testing.contract_job import URL_VARIABLE, contract_job

broker = RedisBroker(url=os.environ[URL_VARIABLE])
broker.add_middleware(LockMiddleware())
dramatiq.set_broker(broker)


@dramatiq.actor(min_backoff=1, max_backoff=5)
def run(name: str) -> None:
    contract_job(name)
