"""What one runtime writes as an id or a token, the other reads as the same."""

from __future__ import annotations

import pytest
import redis

from echomq_plugin import LockManager
from echomq_plugin.connections import Connections
from echomq_plugin.embedded import EmbeddedServer
from echomq_plugin.errors import IdTypeError, InvalidIdError
from echomq_plugin.keys import QueueKeys
from echomq_plugin.scripts import Acquired, Batch, Scripts
from interop.generated_states import TEXTS
from interop.peers import NodePeer

KEYS = QueueKeys("bull", "odd ids ☃")
# BullMQ would keep a job of this name under a key of its own queue, and fails by itself.
KEYS_OF_BULLMQ = ("stalled", "wait")
DURATION = 30_000
LONGER = 300_000


@pytest.fixture
def scripts(server: EmbeddedServer, client: redis.Redis) -> Scripts:
    """Our side of the wire."""
    return Scripts(Connections(server.url, call_limit_ms=10_000))


def test_node_renews_locks_that_python_took_whatever_their_ids_and_tokens(
    node: NodePeer, client: redis.Redis, scripts: Scripts
) -> None:
    """All in one batch, packed by the other runtime; it also finds the one token that is wrong."""
    node("worker", name="w", queue=KEYS.queue, prefix=KEYS.prefix)
    tokens = list(reversed(TEXTS))
    for job_id, token in zip(TEXTS, tokens, strict=True):
        assert isinstance(scripts.acquire(KEYS, job_id, token, DURATION, b""), Acquired)
    wrong = TEXTS[3]
    tokens[3] += "!"

    failed = node("extendLocks", name="w", ids=list(TEXTS), tokens=tokens, duration=LONGER)

    assert failed == [wrong]
    renewed = [client.pttl(KEYS.lock(job_id)) > DURATION for job_id in TEXTS]
    assert renewed == [job_id != wrong for job_id in TEXTS]


def test_python_renews_jobs_that_node_took_whatever_their_ids_and_tokens(
    node: NodePeer, client: redis.Redis, scripts: Scripts
) -> None:
    """Every id that BullMQ lets a job have; all in one batch, which also finds the one token that is wrong."""
    node("worker", name="w", queue=KEYS.queue, prefix=KEYS.prefix, options={"lockDuration": DURATION})
    tokens: dict[str, str] = {}
    refusals: list[str] = []
    for job_id in TEXTS:
        if job_id in KEYS_OF_BULLMQ:
            continue
        try:
            node("add", queue=KEYS.queue, prefix=KEYS.prefix, id=job_id)
        except RuntimeError as refused:
            refusals.append(str(refused))
            continue
        taken = node("take", name="w", token=f"{job_id} {TEXTS[-len(tokens)]}")
        if taken is not None:
            tokens[taken["id"]] = taken["token"]
    assert len(tokens) > len(TEXTS) / 2
    # BullMQ's own rules: no whole numbers and no colons.
    assert all("cannot" in refusal for refusal in refusals), refusals
    wrong, *_ = tokens
    sent = {**tokens, wrong: "wrong"}

    [failed] = scripts.extend_locks([Batch(KEYS, list(sent), list(sent.values()))], LONGER)

    assert failed == [wrong]
    for job_id, token in tokens.items():
        assert client.get(KEYS.lock(job_id)) == token.encode()
        assert (client.pttl(KEYS.lock(job_id)) > DURATION) == (job_id != wrong)


@pytest.mark.parametrize("bad", ["", "half a pair \ud83d", b"\xff", b"j\xc3\xb6b", None, True, 1.5, ["42"]], ids=repr)
def test_what_another_runtime_cannot_read_is_refused_at_the_door_and_touches_nothing_else(
    server: EmbeddedServer, bad: object
) -> None:
    """Refused by itself: what is tracked already stays tracked, and no connection is made."""
    manager = LockManager(server.url, KEYS.queue, KEYS.prefix)
    manager.track_job("good", "token")

    for job_id, token in ((bad, "token"), ("another", bad)):
        with pytest.raises((IdTypeError, InvalidIdError)):
            manager.track_job(job_id, token)

    assert manager.get_tracked_job_ids() == ["good"]
