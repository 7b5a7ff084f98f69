"""What runs write down about themselves, by the server's clock, and what follows from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

# One command, so that the time is the one at which it was written.
_NOTE = """
local time = redis.call('TIME')
local at = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('RPUSH', KEYS[1], cjson.encode({ARGV[1], ARGV[2], ARGV[3], ARGV[4], at}))
"""


@dataclass
class Run:
    """
    One run of one job.

    Attributes:
        job_id: the job.
        token: the token of its lock.
        pid: the worker process.
        began_at: by the server's clock, in µs.
        ended_at: likewise; None while it goes on, as far as anybody knows.
        end: ``completed``, or the name of the exception that ended it.

    """

    job_id: str
    token: str
    pid: int
    began_at: int
    ended_at: int | None = None
    end: str = ""


def note_run(client: redis.Redis, runs_key: str, job_id: str, token: str, event: str) -> None:
    """Write down that a run began, or how it ended."""
    client.eval(_NOTE, 1, runs_key, job_id, token, str(os.getpid()), event)


class RunBook:
    """All runs so far, read bit by bit."""

    def __init__(self) -> None:
        self.read = 0
        self._runs: dict[str, Run] = {}

    def add(self, notes: Iterable[Any]) -> None:
        """Take in further notes, in the order in which they were written."""
        for note in notes:
            self.read += 1
            job_id, token, pid, event, at = json.loads(note)
            if event == "began":
                self._runs[token] = Run(job_id, token, int(pid), int(at))
            else:
                self._runs[token].ended_at, self._runs[token].end = int(at), event

    def end_of_process(self, pid: int, at: int) -> None:
        """Take in that a process is dead since ``at`` (µs): so are the runs that it had not ended."""
        for run in self._runs.values():
            if run.pid == pid and run.ended_at is None:
                run.ended_at, run.end = at, "killed"

    def running(self, pid: int) -> list[Run]:
        """Return the runs that go on in a process."""
        return [run for run in self._runs.values() if run.pid == pid and run.ended_at is None]

    def completed(self) -> set[str]:
        """Return the jobs of which a run has completed."""
        return {run.job_id for run in self._runs.values() if run.end == "completed"}

    def run_of(self, token: str) -> Run | None:
        """Return the run under a lock."""
        return self._runs.get(token)

    def overlapping(self) -> int:
        """Return how many runs began while another run of the same job was going on."""
        busy_until: dict[str, float] = {}
        overlapping = 0
        for run in sorted(self._runs.values(), key=lambda run: run.began_at):
            until = busy_until.get(run.job_id, 0)
            if run.began_at < until:
                overlapping += 1
            busy_until[run.job_id] = max(until, float("inf") if run.ended_at is None else run.ended_at)
        return overlapping
