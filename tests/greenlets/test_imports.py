"""The renewal thread imports nothing: two hubs that import one module at once would hang for good."""

from __future__ import annotations

import pytest

from greenlets.scripts import MODES, run_script

SPY = """
import _thread
from gevent import monkey
get_ident = monkey.get_original("_thread", "get_ident")
own_threads, imported = set(), []

def audit(event, arguments):
    # Raised for each import that is not answered from sys.modules: those are what takes locks.
    if event == "import" and get_ident() in own_threads:
        imported.append(arguments[0])

class Finder:
    def find_spec(self, name, path=None, target=None):
        if get_ident() in own_threads:
            imported.append(name)

sys.addaudithook(audit)
sys.meta_path.insert(0, Finder())

from echomq_plugin import LockManager
from echomq_plugin.hubs import DedicatedHub
main = DedicatedHub._main

def spied(self):
    own_threads.add(get_ident())
    main(self)

DedicatedHub._main = spied
"""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_the_renewal_thread_imports_nothing_from_its_first_breath_to_its_last(server, client, mode, host):
    client.set("emq:mail:1:lock", "t", px=60_000)
    [said] = run_script(
        SPY
        + """
renewed = []
manager = LockManager(URL, "mail", lock_duration=1500, on_locks_renewed=renewed.append)
manager.start()
manager.track_job("1", "t")
eventually(lambda: len(renewed) >= 2)
manager.stop()
say(imported=imported, threads=len(own_threads), renewed=renewed[0])
""",
        mode,
        f"redis://{host}:{server.port}/0",
    )
    assert said == {"imported": [], "threads": 1, "renewed": ["1"]}


@pytest.mark.parametrize("mode", MODES)
def test_the_renewal_thread_imports_nothing_when_its_calls_fail(mode):
    [said] = run_script(
        SPY
        + """
errors = []
manager = LockManager(URL, "mail", lock_duration=1500, on_renewal_error=errors.append)
manager.start()
manager.track_job("1", "t")
eventually(lambda: len(errors) >= 2)
manager.stop()
say(imported=imported, threads=len(own_threads), error=type(errors[0]).__name__)
""",
        mode,
        "redis://localhost:1/0",
    )
    assert said == {"imported": [], "threads": 1, "error": "RedisCallError"}


@pytest.mark.parametrize("mode", MODES)
def test_a_whole_plugin_with_its_checker_imports_nothing_in_its_thread(server, client, mode):
    [said] = run_script(
        SPY
        + """
import pluggy, redis
from echomq_plugin import LockOptions, attach, hookimpl_for
pm = pluggy.PluginManager("shop")
put_back = []
class Host:
    @hookimpl_for(pm)
    def echomq_job_stalled(self, job):
        put_back.append(job.job_id)
        return True
pm.register(Host())
plugin = attach(pm, URL, "mail", LockOptions(lock_duration=1500, stalled_interval=200))
plugin.start()
lock = plugin.job_start("mail", "1")
client = redis.Redis.from_url(URL)
client.hset("emq:mail:held-data", "2", "")
client.hset("emq:mail:held", "2", "dead")
eventually(lambda: "2" in put_back and not client.exists("emq:mail:held-claim"))
client.delete("emq:mail:1:lock")
eventually(lambda: not lock.believed)
plugin.stop(timeout_ms=0)
client.close()
say(imported=imported, threads=len(own_threads))
""",
        mode,
        f"redis://localhost:{server.port}/0",
    )
    assert said == {"imported": [], "threads": 1}
