"""
No script of ours touches a key that it was not given through KEYS: look-alikes of Redis refuse that.

The frozen script alone does, by its protocol; a start on a server that refuses it says which flag to set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.keys import QueueKeys
from echomq_plugin.list_scripts import ListScripts
from echomq_plugin.lua_files import lua_script
from echomq_plugin.scripts import Batch, Scripts
from echomq_plugin.server_check import check_server
from echomq_plugin.sweep_scripts import SweepScripts
from protocol.monitor import Asked, Monitor

KEYS = QueueKeys("emq", "mail")
CORE = (*Scripts.names, *SweepScripts.names, *ListScripts.names, "probeServer-1")


def a_life_of_a_job(connections: Connections, client: redis.Redis) -> None:
    """Call every script of the core, each on the way on which it does the most."""
    scripts, sweep, lists = Scripts(connections), SweepScripts(connections), ListScripts(connections)
    check_server(connections, [KEYS])
    scripts.acquire(KEYS, "1", "t", 30_000, b"entry")
    scripts.acquire(KEYS, "1", "another", 30_000, b"entry")
    scripts.extend_locks([Batch(KEYS, ["1", "2"], ["t", "t"])], 30_000)
    scripts.renew_one(KEYS, "1", "t", 30_000)
    scripts.release(KEYS, "1", "t", keep_entry=False, keep_count=False)
    client.delete(KEYS.fence)
    assert scripts.restore_entries(KEYS, [("2", "t", b"entry", 5)]) == 1
    sweep.win_check(KEYS, "worker", 1, serves=True)
    assert sweep.mark_lockless(KEYS, ["2"]) == []
    dead = sweep.mark_lockless(KEYS, ["2"])
    assert dead == [("2", "t")]
    assert len(sweep.claim(KEYS, "claim", 10_000, dead)) == 1
    assert sweep.keep_claims(KEYS, "claim", 10_000, ["2"]) == ["2"]
    assert sweep.return_claims(KEYS, "claim", dead) == 1
    sweep.claim(KEYS, "claim", 10_000, dead)
    assert sweep.drop_entries(KEYS, "claim", dead, forget_count=False) == 1
    sweep.prune_counts(KEYS, ["2"])
    client.rpush("taken", "a", "b")
    assert lists.put_back("taken", "list", b"a", run_next=True)
    assert lists.put_back_orphans(KEYS, "taken", "list", [("3", b"b")]) == 1


def take_jobs(connections: Connections, client: redis.Redis) -> None:
    """Call the script of RQ's gevent worker, twice: it asks again when an answer was lost."""
    client.rpush("queue", "a", "b")
    for _ in range(2):
        taken = client.eval(lua_script("takeJobs-4").body, 4, "queue", "intermediate", "note", "older note", 2, 60_000)
        assert taken == [b"a", b"b"]


def undeclared(asked: list[Asked], client: redis.Redis) -> Iterator[tuple[str, bytes]]:
    """Yield each script with each key that it touched and was not given."""
    names = {word: name for name in ("extendLocks-1", *CORE, "takeJobs-4") for word in _words_of(name)}
    script, given = "", set()
    for words, by_script in asked:
        if words[0].upper() in (b"EVALSHA", b"EVAL"):
            # A start asks for a script that cannot be there: whether it may.
            script, given = names.get(words[1], "none"), set(words[3 : 3 + int(words[2])])
        elif by_script:
            for key in _keys_of(words, client):
                if key not in given:
                    yield script, key


def _words_of(name: str) -> tuple[bytes, bytes]:
    script = lua_script(name)
    return script.sha.encode(), script.body.encode()


def _keys_of(words: tuple[bytes, ...], client: redis.Redis) -> list[bytes]:
    try:
        return [key.encode() for key in client.command_getkeys(*words)]
    except redis.ResponseError:
        return []  # TIME and the like have none


@pytest.mark.parametrize("live", [a_life_of_a_job, take_jobs])
def test_our_scripts_touch_no_key_that_they_were_not_given(
    server: EmbeddedServer, client: redis.Redis, live: Callable[[Connections, redis.Redis], None]
) -> None:
    connections = Connections(server.url, call_limit_ms=20_000)
    with Monitor(server.url) as monitor:
        live(connections, client)
        client.echo("the end")
        asked = monitor.until(b"the end")
    called = {words[1] for words, by_script in asked if words[0].upper() in (b"EVALSHA", b"EVAL") and not by_script}
    wanted = CORE if live is a_life_of_a_job else ("takeJobs-4",)
    assert [name for name in wanted if not called.intersection(_words_of(name))] == []  # else: add it to the life above

    touched = set(undeclared(asked, client))

    # By the protocol: the frozen script makes the lock keys itself. This also shows that a touch is seen.
    frozen = {key for script, key in touched if script == "extendLocks-1"}
    assert {key for script, key in touched if script != "extendLocks-1"} == set()
    assert (KEYS.lock("1").encode() in frozen) is (live is a_life_of_a_job)
