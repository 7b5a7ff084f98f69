"""The app of a Huey consumer for the contract: the task that runs the contract's job."""

from __future__ import annotations

import os
from typing import Any

from huey import RedisHuey
from huey.storage import RedisStorage

from echomq_plugin.hosts.huey import ReliableRedisStorage, lock_tasks
from echomq_plugin.testing.contract_job import URL_VARIABLE, contract_job


def run(name: str) -> None:
    contract_job(name)


def make(url: str) -> tuple[Any, Any]:
    """Return the instance and its task: workers make it from the environment, tests from their server."""
    storage = ReliableRedisStorage if os.environ.get("CONTRACT_RELIABLE") else RedisStorage
    instance = RedisHuey("contract", storage_class=storage, url=url)
    return instance, instance.task()(run)


if URL_VARIABLE in os.environ:
    huey, _ = make(os.environ[URL_VARIABLE])
    lock_tasks(huey)
