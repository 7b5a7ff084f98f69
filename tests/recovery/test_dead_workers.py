"""Workers that die (cases 26, 27, 29, 38): their jobs come back, once each, and not without end."""

from __future__ import annotations

import pluggy
import pytest
import redis
from faults.conftest import Recorder
from faults.proxy import reply, script
from faults.waiting import eventually, let_pass
from greenlets.scripts import PRELUDE, start_script

from echomq_plugin import LockOptions, attach
from echomq_plugin.errors import OptionError

LOCK_MS = 1_500
OPTIONS = LockOptions(lock_duration=LOCK_MS, stalled_interval=400, hook_limit_ms=2_000)


@pytest.fixture
def checkers(server, client):
    """Two workers that sweep and put back: plugin, recorder."""
    both = []
    for name in ("B", "C"):
        pm = pluggy.PluginManager(name)
        recorder = Recorder(pm)
        recorder.put_back = lambda job: bool(client.rpush("jobs", job.job_id))
        pm.register(recorder)
        plugin = attach(pm, server.url, "mail", OPTIONS)
        plugin.start()
        both.append((plugin, recorder))
    yield both
    for plugin, _ in both:
        plugin.stop(timeout_ms=0)


WORKER = """
import pluggy
from echomq_plugin import LockOptions, attach
plugin = attach(pluggy.PluginManager("A"), URL, "mail", LockOptions(lock_duration=1500, stalled_interval=400))
for job in sys.argv[3].split(","):
    plugin.job_start("mail", job, delivery=f"delivery of {job}", payload=f"payload of {job}")
"""

HANG = (
    WORKER
    + """
say(ready=True)
time.sleep(60)
"""
)


def kill(process):
    process.kill()
    process.wait(10)
    process.stdout.close()
    process.stderr.close()


def test_20_jobs_of_a_killed_worker_are_recovered_once_and_not_once_for_each_checker(server, client, checkers):
    jobs = [str(number) for number in range(20)]
    worker = start_script(HANG, "plain", server.url, ",".join(jobs))
    assert worker.stdout.readline()
    let_pass(LOCK_MS)
    assert client.llen("jobs") == 0  # as long as it lives
    kill(worker)
    recovered = [recorder.recovered for _, recorder in checkers]
    eventually(lambda: sum(map(len, recovered)) == len(jobs))
    let_pass(2 * OPTIONS.stalled_interval)
    assert sorted(client.lrange("jobs", 0, -1)) == sorted(job.encode() for job in jobs)
    told = {job.job_id: job for each in recovered for job in each}
    assert sorted(told) == sorted(jobs)
    assert {(job.queue, job.stalled_count) for job in told.values()} == {("mail", 1)}
    assert {job.payload for job in told.values()} == {f"payload of {job}" for job in jobs}
    assert {job.delivery for job in told.values()} == {f"delivery of {job}" for job in jobs}
    assert client.hlen("emq:mail:held") == client.hlen("emq:mail:held-claim") == 0


def test_the_checker_recovers_in_its_second_and_third_round_as_in_its_first(server, client, checkers):
    for round_ in range(3):
        client.hset("emq:mail:held-data", f"job-{round_}", b"")
        client.hset("emq:mail:held", f"job-{round_}", f"dead-{round_}")
        eventually(lambda round_=round_: f"job-{round_}".encode() in client.lrange("jobs", 0, -1))
    eventually(lambda: client.hlen("emq:mail:held") == 0)
    assert client.llen("jobs") == 3


@pytest.mark.parametrize("interval", [0, -1, 1.5, "200", None, True])
def test_an_interval_that_would_silently_check_nothing_is_refused_at_the_door(interval):
    with pytest.raises(OptionError):
        LockOptions(stalled_interval=interval)


@pytest.mark.parametrize("name", ["winCheck-1", "markLockless", "claimStalled", "dropEntries-5"])
def test_an_error_of_the_checker_reaches_the_error_hook_and_the_next_pass_recovers(proxy, client, pm, recorder, name):
    recorder.put_back = lambda job: bool(client.rpush("jobs", job.job_id))
    options = LockOptions(lock_duration=LOCK_MS, stalled_interval=400, hook_limit_ms=500)  # claims last 1 s
    plugin = attach(pm, proxy.url, "mail", options)
    broken = proxy.on(script(name), reply(b"-ERR wrong number of keys\r\n"), times=2)
    plugin.start()
    client.hset("emq:mail:held-data", "1", b"")
    client.hset("emq:mail:held", "1", "dead")
    eventually(lambda: client.hlen("emq:mail:held") == 0)
    assert broken.hits == 2
    eventually(lambda: sum("wrong number of keys" in str(error) for error in recorder.check_failed) == 2)
    plugin.stop()


def test_a_job_that_kills_its_worker_is_given_up_after_the_set_number_of_recoveries(server, client, checkers):
    poison = (
        WORKER
        + """
os.kill(os.getpid(), 9)
"""
    )
    client.rpush("jobs", "poison")
    runs = 0
    abandoned = [recorder.abandoned for _, recorder in checkers]
    while not any(abandoned):
        eventually(lambda: client.llen("jobs") or any(abandoned))
        if client.lpop("jobs"):
            runs += 1
            worker = start_script(poison, "plain", server.url, "poison")
            assert worker.wait(30) == -9
            worker.stdout.close()
            worker.stderr.close()
    assert runs == 1 + OPTIONS.max_stalled_count
    [job] = [job for each in abandoned for job in each]
    assert (job.queue, job.job_id, job.stalled_count) == ("mail", "poison", OPTIONS.max_stalled_count + 1)
    [recovered] = [job for _, recorder in checkers for job in recorder.recovered]
    assert (recovered.queue, recovered.job_id, recovered.stalled_count) == ("mail", "poison", 1)
    eventually(lambda: client.hlen("emq:mail:held") == client.hlen("emq:mail:stalled-count") == 0)
    assert client.llen("jobs") == 0


def test_the_claim_of_a_sweeper_that_dies_runs_out_and_another_puts_the_job_back(server, client):
    client.hset("emq:mail:held-data", "1", b"")
    client.hset("emq:mail:held", "1", "dead")
    sweeper = start_script(
        """
import pluggy
from echomq_plugin import LockOptions, attach, hookimpl_for
pm = pluggy.PluginManager("A")
class Host:
    @hookimpl_for(pm)
    def echomq_job_stalled(self, job):
        os.kill(os.getpid(), 9)
pm.register(Host())
attach(pm, URL, "mail", LockOptions(lock_duration=1500, stalled_interval=200, hook_limit_ms=500)).start()
time.sleep(60)
""",
        "plain",
        server.url,
        prelude=PRELUDE,
    )
    assert sweeper.wait(30) == -9
    sweeper.stdout.close()
    sweeper.stderr.close()
    assert client.hexists("emq:mail:held-claim", "1")
    pm = pluggy.PluginManager("B")
    recorder = Recorder(pm)
    recorder.put_back = True
    pm.register(recorder)
    plugin = attach(pm, server.url, "mail", OPTIONS)
    plugin.start()
    eventually(lambda: recorder.recovered)
    assert recorder.recovered[0].stalled_count == 1  # once for each dead token, not once for each claim
    eventually(lambda: client.hlen("emq:mail:held") == 0)
    plugin.stop()


def test_a_claim_is_renewed_while_one_slow_plugin_after_the_other_is_asked(server, client):
    put_back: list[str] = []
    plugins = []
    options = LockOptions(lock_duration=LOCK_MS, stalled_interval=200, hook_limit_ms=400)
    client.hset("emq:mail:held-data", "1", b"")
    client.hset("emq:mail:held", "1", "dead")
    for name in ("B", "C"):
        pm = pluggy.PluginManager(name)
        last = Recorder(pm)
        last.put_back = lambda job, name=name: put_back.append(name) is None
        pm.register(last)
        for _ in range(4):
            slow = Recorder(pm)
            slow.put_back = lambda job: let_pass(350)
            pm.register(slow)
        plugin = attach(pm, server.url, "mail", options)
        plugin.start()
        plugins.append(plugin)
    eventually(lambda: client.hlen("emq:mail:held") == 0)
    let_pass(500)
    assert len(put_back) == 1
    for plugin in plugins:
        plugin.stop()


def test_redis_clients_of_a_worker_that_only_sweeps_are_its_own(server, client, checkers):
    # What the sweep reads comes as the bytes it is, whatever the settings of the host's client.
    pm = pluggy.PluginManager("D")
    recorder = Recorder(pm)
    recorder.put_back = True
    pm.register(recorder)
    host_client = redis.Redis.from_url(server.url, decode_responses=True)
    plugin = attach(pm, host_client, "other", OPTIONS)
    plugin.start()
    client.hset("emq:other:held-data", "1", b"\xff\xfe")
    client.hset("emq:other:held", "1", "dead")
    eventually(lambda: client.hlen("emq:other:held") == 0)
    plugin.stop()
    host_client.close()
