"""What becomes of the tasks of a real consumer that is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import contract_huey_app
import huey as huey_package
import pytest
import redis

from echomq_plugin.testing.contract_job import URL_VARIABLE, Plan, Recorder, Runs

HERE = Path(__file__).parent
IS_OLD = huey_package.__version__.startswith("2.")
# A worker process of Huey 3 that runs nothing yet goes on, deaf to SIGTERM, until Redis takes the task.
KINDS = ["greenlet", "process"] if IS_OLD else ["greenlet"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_is_held_back_while_its_consumer_ends_is_put_back(own_server, tmp_path, kind):
    """Huey's own storage: Redis refuses both the lock and the schedule, and takes writes again when SIGTERM comes."""
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        enqueue(own_server.url, "held-back")
        client.config_set("maxmemory", 1)
        log = tmp_path / "log"
        with running_consumer(own_server.url, log, kind, ECHOMQ_DENIED_PAUSE_MS="600000") as consumer:
            wait_until(lambda: "not put back" in log.read_text(), log)
            client.config_set("maxmemory", 0)
            consumer.terminate()
            wait_until(lambda: consumer.poll() is not None, log)
        assert client.llen("huey.redis.contract") + client.zcard("huey.schedule.contract") == 1, log.read_text()


@pytest.mark.parametrize("reliable", ["", "1"], ids=["plain", "reliable"])
@pytest.mark.parametrize("kind", ["greenlet", "process"])
def test_a_consumer_that_ends_does_not_begin_again_what_it_has_put_back(own_server, tmp_path, kind, reliable):
    """SIGTERM in the middle of a task: it is where the next consumer finds it, and nobody has to wait for its lock."""
    recorder = Recorder(own_server.url)
    recorder.plan("long", Plan(runs_for_ms=600_000))
    task_id = enqueue(own_server.url, "long")
    log = tmp_path / "log"
    with running_consumer(own_server.url, log, kind, CONTRACT_RELIABLE=reliable) as consumer:
        wait_until(lambda: recorder.runs("long").started, log)
        consumer.terminate()
        wait_until(lambda: consumer.poll() is not None, log)
    assert recorder.runs("long").started == 1, log.read_text()
    recorder.close()
    if IS_OLD and kind == "greenlet":
        return  # Huey 2.5 does not wait for its greenlets: it may leave before they have put anything back
    with redis.Redis.from_url(own_server.url) as client:
        assert client.llen("huey.redis.contract") + client.zcard("huey.schedule.contract") == 1, log.read_text()
        assert not client.exists("huey.redis.contract:processing", f"emq:huey.contract:{task_id}:lock"), log.read_text()


@pytest.mark.parametrize("kind", ["greenlet", "thread", "process"])
def test_only_the_task_of_the_killed_consumer_comes_back(own_server, tmp_path, kind):
    """Row 33's kind: SIGKILL in mid-task; the task runs again under its id, and what a live consumer runs stays."""
    recorder = Recorder(own_server.url)
    for name in ("dead", "alive"):
        recorder.plan(name, Plan(runs_for_ms=8_000))
    short = {"ECHOMQ_LOCK_DURATION": "2000", "ECHOMQ_STALLED_INTERVAL": "1000"}
    logs = [tmp_path / "killed", tmp_path / "live"]
    dead_id = enqueue(own_server.url, "dead")
    with running_consumer(own_server.url, logs[0], kind, **short) as killed:
        wait_until(lambda: recorder.runs("dead").started, logs[0])
        alive_id = enqueue(own_server.url, "alive")
        with running_consumer(own_server.url, logs[1], kind, **short):
            wait_until(lambda: recorder.runs("alive").started, logs[1])
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()
            recorder.note_killed("dead")
            wait_until(lambda: recorder.runs("dead").completed and recorder.runs("alive").completed, logs[1])
            executed = logs[1].read_text().split("Executing ")[1:]
    assert [line.split()[1] for line in executed] == [alive_id, dead_id]
    assert recorder.runs("dead") == Runs(started=2, completed=1)
    assert recorder.runs("alive") == Runs(started=1, completed=1)
    recorder.close()


def enqueue(url, name):
    instance, run = contract_huey_app.make(url)
    task = run.s(name)
    instance.enqueue(task)
    instance.storage.pool.disconnect()
    return task.id


@contextmanager
def running_consumer(url, log, kind, **settings):
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, URL_VARIABLE: url, "PYTHONPATH": path, **settings}
    patched = ["-m", "gevent.monkey"] if kind == "greenlet" else []
    program = str(Path(sys.executable).with_name("huey_consumer"))
    command = [sys.executable, *patched, program, "contract_huey_app.huey", "-w", "1", "-k", kind]
    with log.open("wb") as output:
        consumer = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        yield consumer
    finally:
        if consumer.poll() is None:
            os.killpg(consumer.pid, signal.SIGKILL)
        consumer.wait()


def wait_until(condition, log):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.05)
