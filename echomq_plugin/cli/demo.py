"""The demo's parent: starts the workers, lets things go wrong, and counts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

import redis

from echomq_plugin.cli.demo_plan import QUEUE, DemoPlan
from echomq_plugin.cli.demo_table import View, view_for
from echomq_plugin.cli.demo_watch import Sight, Watch
from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import EchoMQError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.server_check import check_server

_LOOK_EVERY_S = 0.1
_WORKER_ENDS_WITHIN_S = 10.0

Worker = subprocess.Popen[bytes]


class DemoFailedError(EchoMQError):
    """Raised when the demo cannot go on: its time is over, or a worker died that should not have."""


def run_demo(redis_url: str | None, *, as_json: bool) -> int:
    """
    Run the demo and print what became of it.

    Args:
        redis_url: a server; None: one of our own.
        as_json: print one JSON object as the last line of stdout; everything else goes to stderr.

    Returns:
        the exit code: 0 only if every job completed and no two runs of one job overlapped.

    Raises:
        MissingExtraError: there is no server that could be started.
        ConnectionKindError: ``redis_url`` is no URL.

    """
    with contextlib.ExitStack() as stack:
        end_if_told = stack.enter_context(_sigterm_noted())
        url = redis_url or stack.enter_context(EmbeddedServer()).url
        plan = DemoPlan(url, f"demo-{uuid.uuid4().hex[:8]}", os.getpid())
        connections = Connections(url, call_limit_ms=5_000)
        try:
            check_server(connections, [QueueKeys(plan.prefix, QUEUE)])
        except EchoMQError as error:
            print(f"error: {_without_password(url)}: {error}", file=sys.stderr)
            return 1
        client: Any = stack.enter_context(redis.Redis.from_url(url, decode_responses=True))
        stack.callback(_remove_keys, client, plan.prefix)
        view = stack.enter_context(view_for(plan, to_stderr=as_json))
        demo = Demo(plan, client, view, end_if_told)
        summary = demo.run()
        view.end(summary)
    if as_json:
        print(json.dumps(summary))
    return 1 if demo.failed or summary["lost_jobs"] or summary["overlapping_runs"] else 0


class Demo:
    """
    One demo.

    Args:
        plan: how much of everything.
        client: a ``redis.Redis`` with ``decode_responses``.
        view: shows what happens.
        end_if_told: called between looks; may raise SystemExit.

    Attributes:
        failed: whether the story could not be told to its end.

    """

    def __init__(
        self, plan: DemoPlan, client: Any, view: View, end_if_told: Callable[[], object] = lambda: None
    ) -> None:
        self.plan = plan
        self.view = view
        self._end_if_told = end_if_told
        self.watch = Watch(plan, client)
        self._client = client
        self.failed = False
        self._live: dict[int, Worker] = {}
        self._began = time.monotonic()

    def run(self) -> dict[str, int | float]:
        """Run it all and return the summary."""
        self._client.lpush(self.plan.list_key, *self.plan.items())
        with tempfile.TemporaryFile() as log, self._workers(log) as (doomed, survivor):
            try:
                self._scenario(doomed, survivor)
            except (DemoFailedError, subprocess.TimeoutExpired) as error:
                self.failed = True
                self.view.event(f"failed: {error}")
                log.seek(0)
                for line in log.read().decode(errors="replace").splitlines()[-15:]:
                    self.view.event(f"  {line}")
        return self._summary(self.watch.look(()))

    # -- the story ---------------------------------------------------------------------------------------------------

    def _scenario(self, doomed: Worker, survivor: Worker) -> None:
        book = self.watch.book
        self.view.event(f"two workers, {doomed.pid} and {survivor.pid}, for {self.plan.jobs} jobs")
        half = self.plan.greenlets // 2
        self._until(lambda _: all(len(book.running(pid)) > half for pid in list(self._live)), "both workers run jobs")
        self._lose_a_lock(survivor.pid)
        self._kill(doomed)
        self._block_hub(survivor)
        self._until(
            lambda sight: sight.completed == self.plan.jobs and sight.waiting == sight.taken == 0, "all jobs complete"
        )
        survivor.terminate()
        self._live.pop(survivor.pid)
        survivor.wait(_WORKER_ENDS_WITHIN_S)
        self.view.event("all jobs have completed")

    def _lose_a_lock(self, pid: int) -> None:
        # The youngest run of the longest jobs: it must not end by itself before its loss is noticed.
        longest = max(json.loads(item)["seconds"] for item in self.plan.items())
        long_jobs = {job["id"] for job in map(json.loads, self.plan.items()) if job["seconds"] == longest}
        runs = [run for run in self.watch.book.running(pid) if run.job_id in long_jobs]
        victim = max(runs, key=lambda run: run.began_at)
        self.watch.delete_lock(victim.job_id)
        self.view.event(f"the lock of {victim.job_id} is deleted by hand")
        self._until(lambda sight: any(figures.lost for figures in sight.figures.values()), "the loss is reported")
        self._until(lambda _: victim.end != "", "its greenlet is killed")
        self.view.event(f"reported lost: {victim.job_id}; its greenlet ended by {victim.end}")

    def _kill(self, worker: Worker) -> None:
        self._live.pop(worker.pid)
        worker.kill()
        worker.wait(_WORKER_ENDS_WITHIN_S)
        died_at = self.watch.server_time()
        self.watch.look(())
        orphaned = {run.job_id for run in self.watch.book.running(worker.pid)}
        self.watch.book.end_of_process(worker.pid, died_at)
        self.view.event(f"worker {worker.pid} is killed with {len(orphaned)} jobs")
        self._until(lambda sight: orphaned <= _recovered(sight), "its jobs are recovered")
        self.view.event(f"its {len(orphaned)} jobs are recovered by the other worker")

    def _block_hub(self, worker: Worker) -> None:
        self._until(lambda sight: sight.figures[worker.pid].locks > self.plan.greenlets // 5, "it holds locks")
        self.view.event(f"the hub of worker {worker.pid} is blocked for {self.plan.block_ms} ms")
        worker.send_signal(signal.SIGUSR1)
        self._until(lambda sight: sight.figures[worker.pid].blocked_ms > 0, "the hub turns again")
        self.view.event("the hub turns again")

    def _until(self, condition: Callable[[Sight], bool], what: str) -> None:
        while True:
            self._end_if_told()
            sight = self.watch.look(tuple(self._live))
            self.view.show(sight, tuple(self._live), self.watch.book)
            if condition(sight):
                return
            if time.monotonic() - self._began > self.plan.limit_s:
                raise DemoFailedError(f"out of time before this came true: {what}")
            for pid, worker in self._live.items():
                if worker.poll() is not None:
                    raise DemoFailedError(f"worker {pid} ended by itself, with code {worker.returncode}")
            time.sleep(_LOOK_EVERY_S)

    # -- around it ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _workers(self, log: IO[bytes]) -> Iterator[tuple[Worker, Worker]]:
        # Patched before anything is imported.
        command = [
            sys.executable,
            "-m",
            "gevent.monkey",
            "--module",
            "echomq_plugin.cli.demo_worker",
            self.plan.to_text(),
        ]
        workers: list[Worker] = []
        try:
            for _ in range(2):
                worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
                workers.append(worker)
                self._live[worker.pid] = worker
            yield workers[0], workers[1]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait(_WORKER_ENDS_WITHIN_S)

    def _summary(self, sight: Sight) -> dict[str, int | float]:
        figures = list(sight.figures.values())
        for trouble in dict.fromkeys(trouble for each in figures for trouble in each.troubles):
            self.view.event(f"reported: {trouble}")
        return {
            "jobs": self.plan.jobs,
            "completed": sight.completed,
            "lost_jobs": self.plan.jobs - sight.completed,
            "overlapping_runs": self.watch.book.overlapping(),
            "recovered": sum(len(each.recovered) for each in figures),
            "lock_lost_reports": sum(len(each.lost) for each in figures),
            "ticks": sum(each.ticks for each in figures),
            "renewal_calls": sum(each.renewal_calls for each in figures),
            "renewals": sum(each.renewals for each in figures),
            "max_renewal_gap_ms": max((each.max_renewal_gap_ms for each in figures), default=0),
            "seconds": round(time.monotonic() - self._began, 1),
        }


def _recovered(sight: Sight) -> set[str]:
    return {job_id for figures in sight.figures.values() for job_id in figures.recovered}


def _without_password(url: str) -> str:
    """Return what names the server: a password can be in front of the host, or among the options behind."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _remove_keys(client: Any, prefix: str) -> None:
    # A call that Ctrl-C ended has left its replies unread.
    client.connection_pool.disconnect()
    try:
        for key in list(client.scan_iter(match=f"{prefix}:*", count=1_000)):
            client.delete(key)
    except redis.RedisError:
        pass  # the server is gone, and with it perhaps the keys


@contextlib.contextmanager
def _sigterm_noted() -> Iterator[Callable[[], None]]:
    """Note SIGTERM, for what is yielded to raise SystemExit then. Raised by the handler itself it could get lost."""
    told: list[int] = []

    def end_if_told() -> None:
        if told:
            sys.exit(128 + told[0])

    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield end_if_told
    finally:
        signal.signal(signal.SIGTERM, before)
