"""What becomes of the tasks of a real consumer that is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import contract_huey_app
import huey as huey_package
import pytest
import redis

from echomq_plugin.testing.contract_job import URL_VARIABLE

HERE = Path(__file__).parent
IS_OLD = huey_package.__version__.startswith("2.")
# A worker process of Huey 3 that runs nothing yet goes on, deaf to SIGTERM, until Redis takes the task.
KINDS = ["greenlet", "process"] if IS_OLD else ["greenlet"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_is_held_back_while_its_consumer_ends_is_put_back(own_server, tmp_path, kind):
    """Huey's own storage: Redis refuses both the lock and the schedule, and takes writes again when SIGTERM comes."""
    client = redis.Redis.from_url(own_server.url)
    client.config_set("maxmemory-policy", "noeviction")
    instance, run = contract_huey_app.make(own_server.url)
    instance.enqueue(run.s("held-back"))
    instance.storage.pool.disconnect()
    environment = {
        **os.environ,
        URL_VARIABLE: own_server.url,
        "ECHOMQ_DENIED_PAUSE_MS": "600000",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    patched = ["-m", "gevent.monkey"] if kind == "greenlet" else []
    program = str(Path(sys.executable).with_name("huey_consumer"))
    command = [sys.executable, *patched, program, "contract_huey_app.huey", "-w", "1", "-k", kind]
    log = tmp_path / "log"
    client.config_set("maxmemory", 1)
    with log.open("wb") as output:
        consumer = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: "not put back" in log.read_text(), log)
        client.config_set("maxmemory", 0)
        consumer.terminate()
        wait_until(lambda: consumer.poll() is not None, log)
        assert client.llen("huey.redis.contract") + client.zcard("huey.schedule.contract") == 1, log.read_text()
    finally:
        if consumer.poll() is None:
            os.killpg(consumer.pid, signal.SIGKILL)
        consumer.wait()
        client.close()


def wait_until(condition, log):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.05)
