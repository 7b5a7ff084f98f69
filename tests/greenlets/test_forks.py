"""Forks beside a ticking manager (cases 55 and 57): a child makes everything anew and leaves its parent alone."""

from __future__ import annotations

import json

import pytest

from greenlets.scripts import MODES, run_script

FORKS = """
import logging, random
import gevent
from echomq_plugin import LockManager

renewed, lost, errors = [], [], []
manager = LockManager(URL, "mail", lock_duration=3000, on_locks_renewed=renewed.append,
                      on_lock_renewal_failed=lost.append, on_renewal_error=errors.append)
manager.start()
for n in range(20):
    manager.track_job(str(n), "parent")
eventually(lambda: renewed)

def child(number):
    # What a work-horse may do, in any order, at any time of its parent's tick.
    assert manager.get_active_job_count() == 0 and not manager.is_tracked("1")
    manager.untrack_job("1")
    logging.getLogger("echomq_plugin").warning("from child %s", number)
    manager.track_job(f"child-{number}", "child")     # starts by itself, as its parent had
    manager.start()
    assert manager.get_tracked_job_ids() == [f"child-{number}"]
    own = LockManager(URL, "mail", lock_duration=3000)
    own.start()
    own.track_job("1", "not the parent's")
    if number % 4 == 0:
        manager.track("mail", f"child-{number}", "new", renew_now=True)
        import redis
        eventually(lambda: 0 < redis.Redis.from_url(URL).pttl(f"emq:mail:child-{number}:lock") <= 3000)
    if number % 2:
        own.stop()
        manager.stop()

running = []
for number in range(100):
    if len(running) == 2:
        status = os.waitpid(running.pop(0), 0)[1]
        assert status == 0, f"child before {number}: {status}"
    if number % 10 == 0:
        gevent.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        try:
            child(number)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        if number % 3:
            os._exit(0)
        break
    running.append(pid)
else:
    while running:
        status = os.waitpid(running.pop(0), 0)[1]
        assert status == 0, f"a child: {status}"
    before = len(renewed)
    eventually(lambda: len(renewed) >= before + 2)
    say(lost=lost, errors=[str(e) for e in errors], tracked=manager.get_active_job_count(),
        idle=manager.stop(), renewals=sum(map(len, renewed)) // len(renewed))
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("round_", ["1 of 2", "2 of 2"])
def test_100_forks_beside_a_ticking_manager_harm_neither_parent_nor_children(server, client, mode, round_):
    for n in range(20):
        client.set(f"emq:mail:{n}:lock", "parent", px=60_000)
    for n in range(0, 100, 4):
        client.set(f"emq:mail:child-{n}:lock", "new")
    said = run_script(FORKS, mode, server.url, limit_s=110)
    assert said == [{"lost": [], "errors": [], "tracked": 20, "idle": False, "renewals": 20}]
    assert {client.get(f"emq:mail:{n}:lock") for n in range(20)} == {b"parent"}


@pytest.mark.parametrize("mode", MODES)
def test_the_job_of_a_forked_child_keeps_its_lock_and_the_childs_exit_leaves_the_parents_alone(server, client, mode):
    # Case 55: attached and started in the parent, forked, and the child runs a job that outlives a lock duration.
    [child, parent] = run_script(
        """
import pluggy, redis
from echomq_plugin import LockOptions, attach
plugin = attach(pluggy.PluginManager("shop"), URL, "mail", LockOptions(lock_duration=1500))
plugin.start()
held = plugin.job_start("mail", "parent's")
pid = os.fork()
client = redis.Redis.from_url(URL)
if pid == 0:
    assert str(plugin.job_finish(held, "completed")) == "FinishResult.UNKNOWN"  # it is the parent's job
    with plugin.job("child's") as lock:
        lowest = 1500
        until = time.monotonic() + 3
        while time.monotonic() < until:
            lowest = min(lowest, client.pttl("emq:mail:child's:lock"))
            time.sleep(0.02)
        assert lock.confirm()
        say(who="child", kept=lowest > 0, worker=plugin.worker_name().endswith(str(os.getpid())))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
say(who="parent", kept=held.confirm(), finish=plugin.job_finish(held, "completed").value, stopped=plugin.stop(1000))
client.close()
""",
        mode,
        server.url,
    )
    assert child == {"who": "child", "kept": True, "worker": True}
    assert parent == {"who": "parent", "kept": True, "finish": "released", "stopped": True}
    assert json.dumps(sorted(key.decode() for key in client.keys("*lock"))) == "[]"
