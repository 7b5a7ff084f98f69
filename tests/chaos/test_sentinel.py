"""Through sentinels: one that never answers takes one call's limit, and not every call's."""

from __future__ import annotations

from contextlib import suppress

from faults.proxy import FaultProxy, every_command, swallow
from faults.waiting import eventually
from redis.sentinel import Sentinel

from chaos.servers import SERVICE, SentinelGroup
from echomq_plugin import FinishResult, LockOptions, attach
from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError

LIMIT_MS = 1_000


def test_a_sentinel_that_never_answers_ends_one_call_and_the_next_asks_another(sentinels: SentinelGroup) -> None:
    with FaultProxy(sentinels.sentinels[0].port) as proxy:
        silent = proxy.on(every_command, swallow)
        # Asked last to first: the one that is next in turn comes after the first of the list.
        addresses = [sentinels.addresses()[1], ("127.0.0.1", proxy.port), sentinels.addresses()[2]]
        client = Sentinel(addresses).master_for(SERVICE)
        connections = Connections(client, call_limit_ms=LIMIT_MS)
        with suppress(RedisCallError):  # it may just reach the next one before its limit
            connections.call("ask", lambda client: client.execute_command("GET", "key"))
        assert silent.hits > 0
        asked = silent.hits
        assert connections.call("ask", lambda client: client.execute_command("GET", "key")) is None
        assert silent.hits == asked
        connections.close_thread()
        client.close()


def test_a_master_that_was_demoted_is_left_and_nothing_is_lost(sentinels: SentinelGroup, pm, recorder) -> None:
    options = LockOptions(lock_duration=20_000, lock_renew_time=2_000, call_limit_ms=2_000, stalled_interval=60_000)
    plugin = attach(pm, sentinels.connection(), "mail", options)
    plugin.start()
    lock = plugin.job_start("mail", "1")
    master = sentinels.master()
    eventually(lambda: _asked_to_fail_over(sentinels), "the sentinels agree to fail over")
    eventually(lambda: sentinels.master() is not master, "another master")
    recorder.renewed.clear()
    eventually(lambda: "1" in recorder.renewed)
    assert recorder.lost == []
    eventually(lock.confirm)
    assert plugin.job_finish(lock, "completed") is FinishResult.RELEASED
    plugin.stop(timeout_ms=0)


def _asked_to_fail_over(sentinels: SentinelGroup) -> bool:
    try:
        sentinels.sentinels[0].client.execute_command("SENTINEL FAILOVER", SERVICE)
    except Exception:  # not yet: it answers NOGOODSLAVE or INPROG
        return False
    return True
