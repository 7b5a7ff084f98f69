"""Dramatiq keeps the rules of every host, with threads and with gevent."""

from __future__ import annotations

import sys
from pathlib import Path

from dramatiq import Message
from dramatiq.brokers.redis import RedisBroker

from echomq_plugin.testing import HostContract

HERE = Path(__file__).parent


class DramatiqContract(HostContract):
    queue = "dramatiq.default"
    can_deliver_again = True
    drops_same_delivery = True
    can_retry = True
    can_limit_time = True
    can_give_up = True
    program = "dramatiq"

    def enqueue(self, name, *, retries=0, time_limit_ms=None):
        options = {"max_retries": retries}
        if time_limit_ms is not None:
            options["time_limit"] = time_limit_ms
        broker = RedisBroker(url=self.server.url, middleware=[])
        try:
            return broker.enqueue(Message("default", "run", (name,), {}, options)).message_id
        finally:
            broker.client.close()

    def start_worker(self):
        program = str(Path(sys.executable).with_name(self.program))
        command = [sys.executable, program, "contract_dramatiq_app", "--processes", "1", "--threads", "2"]
        return self.spawn([*command, "--path", str(HERE)])

    def deliver_again(self, job_id):
        for name, body in self.client.hgetall("dramatiq:default.msgs").items():
            if Message.decode(body.encode()).message_id == job_id:
                self.client.rpush("dramatiq:default", name)

    def is_given_up(self, job_id):
        bodies = self.client.hvals("dramatiq:default.XQ.msgs")
        return any(Message.decode(body.encode()).message_id == job_id for body in bodies)


class TestDramatiqThreads(DramatiqContract):
    """``dramatiq``."""


class TestDramatiqGevent(DramatiqContract):
    """``dramatiq-gevent``."""

    program = "dramatiq-gevent"
