"""Leaving the interpreter while the renewal thread runs: it is joined first, so no exit is by a signal."""

from __future__ import annotations

import pytest

from greenlets.scripts import MODES, run_script

EXITS = """
import random
import gevent
from echomq_plugin import LockManager

def reap(running):
    pid, status = os.wait()
    running.remove(pid)
    assert status == 0, f"exit {number} of {len(endings)}: status {status}"

# The parent has imported all and started nothing; each child is a process that starts, ticks, and leaves as any does.
endings = random.Random(sys.argv[3]).choices(["end", "exit"], k=50)
running = []
for number, ending in enumerate(endings):
    while len(running) >= 2:
        reap(running)
    pid = os.fork()
    if pid == 0:
        break
    running.append(pid)
else:
    while running:
        reap(running)
    say(exits=len(endings))
    ending = None

if ending:
    managers = [LockManager(URL, "exits", lock_duration=300, on_locks_renewed=lambda ids: None) for _ in range(2)]
    for manager in managers:
        manager.start()
        manager.track_job("1", "t")
    wait = gevent.sleep if number % 2 else time.sleep
    wait(random.uniform(0, 0.15))
    if ending == "exit":
        sys.exit(0)
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("round_", ["1 of 3", "2 of 3", "3 of 3"])
def test_50_exits_with_the_manager_running_are_all_clean(server, client, mode, round_):
    client.set("emq:exits:1:lock", "t")
    assert run_script(EXITS, mode, server.url, round_, limit_s=110) == [{"exits": 50}]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dedicated", [True, False])
def test_an_idle_plugin_keeps_no_process_alive(server, client, mode, dedicated):
    run_script(
        f"""
import gevent, pluggy
from echomq_plugin import LockOptions, attach
plugin = attach(pluggy.PluginManager("shop"), URL, "mail", LockOptions(dedicated_hub={dedicated}))
plugin.start()
with plugin.job("1"):
    pass
gevent.spawn(gevent.sleep, 0.01)
gevent.wait()  # returns once nothing but the library is left on this hub
""",
        mode,
        server.url,
        limit_s=20,
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_that_was_interrupted_leaves_the_exit_clean(server, client, mode):
    run_script(
        """
import gevent
from echomq_plugin import LockManager
manager = LockManager(URL, "mail", lock_duration=300)
manager.start()
manager.track_job("1", "t")
stopping = gevent.spawn(manager.stop)
gevent.sleep(0.001)
stopping.kill()
""",
        mode,
        server.url,
    )


@pytest.mark.parametrize("mode", MODES)
def test_an_exit_while_redis_hangs_is_clean_and_soon(mode):
    run_script(
        """
import socket
deaf = socket.socket()
deaf.bind(("127.0.0.1", 0))
deaf.listen()
from echomq_plugin import LockManager
manager = LockManager(f"redis://127.0.0.1:{deaf.getsockname()[1]}", "mail", lock_duration=100_000)
manager.start()
manager.track("mail", "1", "t", renew_now=True)
time.sleep(0.2)
begun = time.monotonic()
import atexit
def check():
    assert time.monotonic() - begun < 10
    deaf.close()
atexit.register(check)
""",
        mode,
        "",
        limit_s=30,
    )
