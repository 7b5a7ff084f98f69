"""Importing the package makes nothing, so it may come before ``patch_all()`` (case 58)."""

from __future__ import annotations

import pytest

from greenlets.scripts import MODES, end_of, run_script, start_script

WITHOUT_PATCHING = "\nimport json, sys, time, os\nURL = sys.argv[2]\ndef say(**v): print(json.dumps(v), flush=True)\n"


def run_unpatched(source, url):
    return end_of(start_script(source, "plain", url, prelude=WITHOUT_PATCHING))


def test_importing_makes_no_thread_lock_socket_hub_or_greenlet():
    [said] = run_unpatched(
        """
import redis, gevent, msgpack, pluggy, logging, threading, gc, uuid, importlib.metadata, gevent.lock
import redis.cluster, redis.sentinel, gevent.socket
gc.collect()
known = {id(o) for o in gc.get_objects()}
import echomq_plugin, echomq_plugin.hubs, echomq_plugin.testing

gc.collect()
def name(o):
    return f"{type(o).__module__}.{type(o).__name__}"
made = {name(o) for o in gc.get_objects() if id(o) not in known}
suspect = ["lock", "Lock", "Semaphore", "Event", "Hub", "Greenlet", "socket", "Connection", "Thread", "local", "loop"]
def values(module):
    return [f"{module.__name__}.{k}" for k, v in vars(module).items()
            if any(word in type(v).__name__ for word in suspect) and not isinstance(v, type)]
held = [v for n, m in list(sys.modules.items()) if n.startswith("echomq_plugin") for v in values(m)]
from gevent._hub_local import get_hub_if_exists
say(
    threads=len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count(),
    hub=get_hub_if_exists() is not None,
    held=held,
    made=sorted(n for n in made if n.split(".")[-1] in ("Hub", "Greenlet", "socket", "Connection", "Thread", "RLock")),
)
""",
        "",
    )
    assert said == {"threads": 1, "hub": False, "held": [], "made": []}


def test_a_process_that_only_attaches_never_connects(server, client):
    before = client.info("stats")["total_connections_received"]
    [said] = run_unpatched(
        """
import pluggy
from echomq_plugin import attach, LockManager
attach(pluggy.PluginManager("shop"), URL, "mail")
LockManager(URL, "mail")
from gevent._hub_local import get_hub_if_exists
say(threads=len(os.listdir("/proc/self/task")), hub=get_hub_if_exists() is not None)
""",
        server.url,
    )
    assert said == {"threads": 1, "hub": False}
    assert client.info("stats")["total_connections_received"] == before


def test_patching_after_the_import_works_as_patching_before_it(server, client):
    [said] = run_unpatched(
        """
import pluggy, redis
from echomq_plugin import LockOptions, attach
import warnings
warnings.simplefilter("ignore")  # gevent warns that ssl was imported already
from gevent import monkey
monkey.patch_all()
import gevent
plugin = attach(pluggy.PluginManager("shop"), URL, "mail", LockOptions(lock_duration=1500))
turns = []
def turn():
    while True:
        turns.append(1)
        time.sleep(0.01)
turning = gevent.spawn(turn)
with plugin.job("1") as lock:
    time.sleep(2)
    before = len(turns)
    assert lock.confirm()
    assert time.sleep(0.05) is None and len(turns) > before
turning.kill()
say(left=redis.Redis.from_url(URL).keys("emq:mail:1:lock"), stopped=plugin.stop(timeout_ms=1000))
""",
        server.url,
    )
    assert said == {"left": [], "stopped": True}


@pytest.mark.parametrize("mode", MODES)
def test_an_app_with_a_hub_that_is_not_patched_is_told_so(server, client, mode):
    [said] = run_script(
        """
import gevent, logging, pluggy
from echomq_plugin import LockOptions, attach
seen = []
class Handler(logging.Handler):
    def emit(self, record):
        seen.append((record.levelname, record.echomq_event))
logger = logging.getLogger("echomq_plugin")
logger.addHandler(Handler())
logger.setLevel("INFO")
gevent.sleep(0)
plugin = attach(pluggy.PluginManager("shop"), URL, "mail", LockOptions(dedicated_hub=False))
plugin.start()
plugin.stop()
say(seen=seen)
""",
        mode,
        server.url,
    )
    assert said["seen"] == ([] if mode == "patched" else [["WARNING", "not monkey-patched"]])
