"""The host of ``docs/write-a-host.md``, what it can be taught, and the ways in which it can break a host's rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

JOB = "with self.plugin.job(item.decode(), payload=item) as lock:"
BODY = "contract_job(item.decode())\n"
CHECK = "if not lock.confirm_in_time():\n                    raise NotOurs"
LOST = "            pass  # it is another run's now, or the sweep's"
DENIED = '/ 1000)\n            self.move(item, "shelf")\n'
PUT_BACK = '        self.move(job.payload, "shelf")\n'

Patch = tuple[str, str]

# -- what the page's host cannot do, and a test needs ------------------------------------------------------------------

RETRIES: tuple[Patch, ...] = (
    (
        "if failed:\n",
        'if failed and self.client.hincrby("shelf:retries", item, -1) >= 0:\n'
        '                    self.move(item, "shelf")\n'
        "                    time.sleep(0.2)  # an idle worker takes it before this run lets go\n"
        "                elif failed:\n",
    ),
)
TIME_LIMITS: tuple[Patch, ...] = (
    ("import os\n", "import os\n\nimport gevent\n"),
    (BODY, 'with gevent.Timeout(float(self.client.hget("shelf:limits", item) or 600)):\n' + " " * 24 + BODY),
    ("except Exception:", "except (Exception, gevent.Timeout):"),
)
NAMED_DELIVERIES: tuple[Patch, ...] = (
    (JOB, "with self.plugin.job(item.decode(), payload=item, delivery=item.decode()) as lock:"),
    (
        "            time.sleep(getattr(",
        '            if getattr(refused, "same_delivery", False):\n'
        '                self.client.lrem("shelf:taken", 1, item)\n'
        "                return\n"
        "            time.sleep(getattr(",
    ),
)
TAUGHT = {
    "test_every_run_of_a_job_that_retries_at_once_takes_place": RETRIES,
    "test_a_job_past_the_hosts_own_time_limit_gives_its_lock_back": TIME_LIMITS,
    "test_a_dropped_delivery_is_not_run_later": NAMED_DELIVERIES,
}

# -- rules that are broken ---------------------------------------------------------------------------------------------

TAKES_NO_LOCK: Patch = (
    JOB,
    'with __import__("contextlib").nullcontext(__import__("unittest.mock").mock.MagicMock()) as lock:',
)
NEVER_RELEASES: Patch = (
    JOB,
    'with __import__("contextlib").nullcontext(self.plugin.job_start("shelf", item, payload=item)) as lock:',
)
KEEPS_LOCKS_OF_FAILED_JOBS: Patch = (
    "failed = True",
    "failed = True\n                    self.plugin.job_finish = lambda *_: None",
)
NEVER_RENEWS: Patch = (
    "        self.plugin.start()",
    "        self.plugin.start()\n        self.plugin.manager.track = lambda *_, **__: None",
)
RUNS_WHAT_IT_GAVE_UP: Patch = ('self.move(item, "shelf:failed")', 'self.move(item, "shelf")')
DROPS_DENIED_DELIVERIES: Patch = (DENIED, "/ 1000)\n")
KEEPS_SAME_DELIVERIES: Patch = ('if getattr(refused, "same_delivery", False):', "if False:")
RUNS_DENIED_DELIVERIES: Patch = (DENIED, "/ 1000)\n            " + BODY)
DOES_NOT_STOP: Patch = (JOB, JOB + "\n                self.plugin.cancel_with(lock, lambda *_: None)")
FAILS_LOST_JOBS: Patch = (LOST, '            self.move(item, "shelf:failed")')
FORGETS_LOST_JOBS: Patch = (LOST, '            self.client.lrem("shelf:taken", 1, item)')
RELEASES_BY_HAND: Patch = (CHECK, CHECK + '\n                self.client.delete(f"emq:shelf:{item.decode()}:lock")')
NEVER_RECOVERS: Patch = (PUT_BACK, "")
COUNTS_WITHOUT_LIMIT: Patch = ("import os\n", 'import os\n\nos.environ["ECHOMQ_MAX_STALLED_COUNT"] = "99"\n')
NEVER_GIVES_UP: Patch = ('self.move(job.payload, "shelf:failed")', 'self.move(job.payload, "shelf")')
STOPS_RENEWING_FIRST: Patch = (
    "        self.stopping = True",
    "        self.stopping = True\n        self.plugin.manager.stop()",
)
FINISHES_WHEN_FORCED: Patch = (
    "except Exception:",
    'except SystemExit:\n                    self.client.lrem("shelf:taken", 1, item)\n'
    '                    self.plugin.job_finish(lock, "completed")\n                    raise\n'
    "                except Exception:",
)


@dataclass(frozen=True)
class Fault:
    """
    A rule that is broken, the test of it, and what that test says.

    Attributes:
        patch: the text of the page's host, and what stands there instead; None: nothing is broken.
        test: the test that must fail.
        says: what the failure says, as a pattern.

    """

    patch: Patch | None
    test: str
    says: str = ""

    def host(self) -> str:
        """Return the host's program."""
        page = (ROOT / "docs" / "write-a-host.md").read_text()
        program, _ = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
        patches = [*TAUGHT.get(self.test, ()), *([self.patch] if self.patch else [])]
        for old, new in patches:
            assert program.count(old) == 1, f"the page has this {program.count(old)} times: {old}"
            program = program.replace(old, new)
        return str(program)


FAULTS = {
    "takes no lock": [
        Fault(TAKES_NO_LOCK, "test_a_running_job_holds_its_lock_and_gives_it_back", "a running job has no lock"),
        Fault(TAKES_NO_LOCK, "test_a_failed_job_gives_its_lock_back", "a running job has no lock"),
        Fault(TAKES_NO_LOCK, "test_a_job_whose_lock_is_deleted_comes_back", "a running job has no lock"),
        Fault(TAKES_NO_LOCK, "test_a_job_whose_lock_is_held_waits_for_it", "a job ran whose lock is somebody else's"),
        Fault(TAKES_NO_LOCK, "test_no_job_runs_unlocked_while_redis_refuses_locks", "a job ran without a lock"),
    ],
    "never releases": [
        Fault(NEVER_RELEASES, "test_a_running_job_holds_its_lock_and_gives_it_back", "lock and entry are gone"),
    ],
    "keeps locks of failed jobs": [
        Fault(KEEPS_LOCKS_OF_FAILED_JOBS, "test_a_failed_job_gives_its_lock_back", "lock and entry are gone"),
    ],
    "never renews": [
        Fault(NEVER_RENEWS, "test_a_job_longer_than_its_lock_keeps_it", "was not renewed"),
    ],
    "runs again what exceeded its time": [
        Fault(
            RUNS_WHAT_IT_GAVE_UP,
            "test_a_job_past_the_hosts_own_time_limit_gives_its_lock_back",
            "the job records|lock and entry are gone|a run more than",
        ),
    ],
    "drops denied deliveries": [
        Fault(DROPS_DENIED_DELIVERIES, "test_a_job_whose_lock_is_held_waits_for_it", "the job records"),
        Fault(DROPS_DENIED_DELIVERIES, "test_a_second_delivery_never_runs_beside_the_first", "2 of two deliveries"),
        Fault(DROPS_DENIED_DELIVERIES, "test_every_run_of_a_job_that_retries_at_once_takes_place", "the job records"),
        Fault(DROPS_DENIED_DELIVERIES, "test_no_job_runs_unlocked_while_redis_refuses_locks", "the job records"),
    ],
    "keeps same deliveries": [
        Fault(
            KEEPS_SAME_DELIVERIES, "test_a_dropped_delivery_is_not_run_later", "the job records|a run more|ran after"
        ),
    ],
    "runs denied deliveries": [
        Fault(RUNS_DENIED_DELIVERIES, "test_a_second_delivery_never_runs_beside_the_first", "two runs of one job"),
    ],
    "does not stop lost runs": [
        Fault(DOES_NOT_STOP, "test_a_job_whose_lock_is_taken_writes_nothing", "the run is stopped"),
        Fault(DOES_NOT_STOP, "test_a_job_whose_lock_is_deleted_comes_back", "the run is stopped"),
    ],
    "fails lost jobs": [
        Fault(FAILS_LOST_JOBS, "test_a_job_whose_lock_is_taken_writes_nothing", "the loser counted the job as failed"),
    ],
    "forgets lost jobs": [
        Fault(FORGETS_LOST_JOBS, "test_a_job_whose_lock_is_taken_writes_nothing", "the job records"),
        Fault(FORGETS_LOST_JOBS, "test_a_job_whose_lock_is_deleted_comes_back", "the job records"),
    ],
    "releases by hand": [
        Fault(RELEASES_BY_HAND, "test_a_lock_whose_release_failed_goes_later", "the lock went without its entry"),
    ],
    "never recovers": [
        Fault(NEVER_RECOVERS, "test_the_job_of_a_killed_worker_runs_again", "the job starts again"),
        Fault(NEVER_RECOVERS, "test_a_job_whose_lock_is_deleted_comes_back", "the job records"),
    ],
    "counts without limit": [
        Fault(COUNTS_WITHOUT_LIMIT, "test_a_job_that_kills_its_workers_is_given_up", "counts the job as failed"),
    ],
    "never gives up": [
        Fault(NEVER_GIVES_UP, "test_a_job_that_kills_its_workers_is_given_up", "counts the job as failed"),
    ],
    "stops renewing first": [
        Fault(
            STOPS_RENEWING_FIRST,
            "test_a_warm_shutdown_keeps_locks_until_the_last_job_ends",
            "the lock went before its job ended",
        ),
    ],
    "finishes when forced": [
        Fault(FINISHES_WHEN_FORCED, "test_a_forced_shutdown_loses_no_job", "the job completes"),
    ],
}
