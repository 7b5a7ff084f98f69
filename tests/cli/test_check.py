"""``echomq-plugin check``: what a worker's start would say, without a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import redis
from faults.proxy import Fault, FaultProxy, drip, every_command, reply, swallow

from echomq_plugin.embedded import EmbeddedServer, free_port


def check(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "echomq_plugin", "check", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **variables},
    )


def test_a_good_server_is_named_with_what_to_grant_and_leaves_no_key(client: redis.Redis, server: EmbeddedServer):
    done = check("--redis-url", server.url, ECHOMQ_PREFIX="other")
    assert done.returncode == 0, done.stderr
    assert "round trip" in done.stdout
    assert "~other:*" in done.stdout
    assert "warning" not in done.stdout
    assert client.keys() == []


def test_json_is_one_object_with_what_was_found(server: EmbeddedServer):
    done = check("--redis-url", server.url, "--json")
    found = json.loads(done.stdout)
    assert found["fit"] is True
    assert found["error"] is None
    assert found["kind"] in ("redis", "valkey")
    assert found["warnings"] == []
    assert found["round_trip_ms"] > 0


def test_what_harms_some_day_is_warned_of_and_no_refusal(own_server: EmbeddedServer):
    with redis.Redis(port=own_server.port) as admin:
        admin.config_set("maxmemory-policy", "volatile-lru")
    done = check("--redis-url", own_server.url)
    assert done.returncode == 0
    assert "warning: maxmemory-policy volatile-lru" in done.stdout


def test_options_that_do_not_fit_together_are_warned_of_and_no_refusal(server: EmbeddedServer):
    done = check("--redis-url", server.url, ECHOMQ_LOCK_DURATION="60000")
    assert done.returncode == 0
    assert "warning: stalled_interval=30000" in done.stdout
    assert "write stalled_interval=60000" in done.stdout


def test_a_user_who_may_too_little_is_refused_with_the_line_to_grant(own_server: EmbeddedServer):
    with redis.Redis(port=own_server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~emq:*", "+get")
    done = check("--redis-url", f"redis://worker:secret@127.0.0.1:{own_server.port}", "--json")
    assert done.returncode == 1
    assert "grant it +evalsha" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("more", [[], ["--cluster"]], ids=["one node", "a cluster"])
def test_a_server_that_does_not_answer_is_said_without_a_traceback(more: list[str]):
    done = check("--redis-url", f"redis://127.0.0.1:{free_port()}", *more)
    assert done.returncode == 1
    assert "error: " in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("more", [[], ["--cluster", "--queue", "{mail}"]], ids=["one node", "a cluster"])
@pytest.mark.parametrize(
    "answer",
    [
        swallow,
        drip,
        reply(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        reply(b"+OK\r\n"),
        reply(b":5\r\n"),
        reply(b"%1\r\n+a\r\n+b\r\n"),
    ],
    ids=["nothing", "byte by byte", "HTTP", "a status", "a number", "a map"],
)
def test_a_server_that_is_no_redis_is_an_error_in_time_and_no_traceback(
    server: EmbeddedServer, answer: Fault, more: list[str]
):
    with FaultProxy(server.port) as proxy:
        proxy.on(every_command, answer)
        done = check("--redis-url", f"redis://worker:secret@127.0.0.1:{proxy.port}", *more, ECHOMQ_CALL_LIMIT_MS="1000")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(("error: Redis gave no answer to ", "error: the server answered a script with "))
    assert done.stderr == ""
    assert "secret" not in done.stdout


def test_a_name_that_is_none_is_an_error_and_no_traceback():
    done = check("--redis-url", "redis://redis..invalid:6379")
    assert done.returncode == 1
    assert "UnicodeError" in done.stdout
    assert done.stderr == ""


def test_one_server_is_no_cluster(server: EmbeddedServer):
    done = check("--redis-url", server.url, "--cluster", "--queue", "{mail}")
    assert done.returncode == 1
    assert "connect as to one server" in done.stdout


@pytest.mark.parametrize("more", [[], ["--cluster"]], ids=["one node", "a cluster"])
@pytest.mark.parametrize(
    "url", ["redis://:se/cret@localhost", "redis://:se#cret@localhost", "redis://:se\u2100ret@localhost"]
)
def test_a_url_that_cannot_be_read_is_a_mistake_of_the_caller_and_its_password_is_not_told(url: str, more: list[str]):
    done = check("--redis-url", url, *more)
    assert done.returncode == 2
    assert "write what is special in a password as %2F" in " ".join(done.stderr.split())
    assert "'se" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--redis-url", "localhost"], {}, "redis://host:port/db"),
        (["--redis-url", "localhost", "--cluster"], {}, "redis://host:port/db"),
        (["--redis-url", "unix:///sock", "--cluster"], {}, "host and port"),
        (["--queue", "a:b"], {}, "a:b"),
        ([], {"ECHOMQ_LOCK_DURATION": "soon"}, "ECHOMQ_LOCK_DURATION"),
    ],
    ids=["URL", "URL of a cluster", "path of a cluster", "queue", "environment"],
)
def test_what_the_caller_got_wrong_is_a_mistake_of_the_caller(arguments, variables, said):
    done = check(*arguments, **variables)
    assert done.returncode == 2
    assert said in done.stderr
