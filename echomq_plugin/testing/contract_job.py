"""The job that ``HostContract`` runs through a host: it does what the test told it to do, and records each run."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Final

import redis

URL_VARIABLE: Final = "ECHOMQ_CONTRACT_URL"
"""The environment variable that tells a worker's jobs where to record their runs."""

_PLANS: Final = "contract:plans"
_SLICE_S: Final = 0.05


class ContractError(Exception):
    """Raised by a job that was told to fail."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What a job does.

    Attributes:
        runs_for_ms: how long it runs, in ms.
        fails: how many of its first runs raise ``ContractError`` at their end.

    """

    runs_for_ms: int = 0
    fails: int = 0


@dataclass(frozen=True, slots=True)
class Runs:
    """
    What a job recorded.

    Attributes:
        started: how many runs began.
        completed: how many returned.
        failed: how many raised.
        interrupted: how many were ended by an exception that is not an ``Exception``.
        overlapping: how many began while another run of the same job was going on.

    """

    started: int = 0
    completed: int = 0
    failed: int = 0
    interrupted: int = 0
    overlapping: int = 0


def contract_job(name: str) -> str:
    """
    Run the job of this name. A host's own job function does nothing but call it.

    Time passes in slices of 50 ms, so that a host that can stop a thread only between two bytecodes can stop it.

    Raises:
        ContractError: the plan says so.

    """
    client = _client(os.environ[URL_VARIABLE])
    try:
        plan = Plan(**json.loads(client.hget(_PLANS, name)))
        run = uuid.uuid4().hex
        number = client.hincrby(_runs(name), "started", 1)
        if client.incr(_going_on(name)) > 1:
            client.hincrby(_runs(name), "overlapping", 1)
        outcome = "interrupted"
        try:
            until = time.monotonic() + plan.runs_for_ms / 1000
            while time.monotonic() < until:
                time.sleep(_SLICE_S)
            outcome = "failed" if number <= plan.fails else "completed"
        finally:
            client.decr(_going_on(name))
            client.hincrby(_runs(name), outcome, 1)
        if outcome == "failed":
            raise ContractError(f"run {number} of {name} fails as planned")
        return run
    finally:
        client.close()


class Recorder:
    """
    The test's side of ``contract_job``.

    Args:
        url: the server where runs are recorded.

    """

    def __init__(self, url: str) -> None:
        self._client = _client(url)

    def plan(self, name: str, plan: Plan) -> None:
        """Tell the job of this name what to do; before it is enqueued."""
        self._client.hset(_PLANS, name, json.dumps(asdict(plan)))

    def runs(self, name: str) -> Runs:
        """Return what the job of this name has recorded."""
        return Runs(**{field: int(count) for field, count in self._client.hgetall(_runs(name)).items()})

    def note_killed(self, name: str) -> None:
        """Take in that the run that was going on is dead: it could not record its end."""
        self._client.delete(_going_on(name))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _client(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True)


def _runs(name: str) -> str:
    return f"contract:runs:{name}"


def _going_on(name: str) -> str:
    return f"contract:going-on:{name}"
