"""What becomes of a delivery that does not run, or whose run was lost: one class for each kind of broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from threading import Event
from typing import Any, Final, Protocol

from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import MiddlewareError

from echomq_plugin.errors import HostSetupError
from echomq_plugin.events import StalledJob
from echomq_plugin.hosts.dramatiq.consumers import keep_delayed_messages
from echomq_plugin.hosts.dramatiq.dead_workers import DeadWorkers, Held
from echomq_plugin.keys import percent_encoded
from echomq_plugin.log import log_event
from echomq_plugin.options import LockOptions

DROPPED_KEPT_MS: Final = 7 * 24 * 3_600 * 1_000
"""How long the body of a dropped delivery is kept for the case that the run it equals dies."""


class SetupRefusedError(HostSetupError, MiddlewareError):
    """A ``HostSetupError`` that Dramatiq lets out of a hook; all else it logs and ignores."""

    def __init__(self, error: Exception) -> None:
        self.part = getattr(error, "part", error)
        Exception.__init__(self, str(error))


class Deliveries(Protocol):
    """One broker's deliveries. What a method raises is the broker's own error: nothing was changed."""

    @property
    def namespace(self) -> str:
        """What this broker's queues are called among all hosts' queues."""
        ...

    def name(self, message: Any) -> str | None:
        """Return what tells this delivery from all others of its message, or None."""
        ...

    def payload(self, message: Any) -> str:
        """Return what brings the message back should its worker die."""
        ...

    def put_back(self, message: Any, delay_ms: int) -> None:
        """Have the message delivered again later. The delivery at hand is acknowledged afterwards."""
        ...

    def keep_copy(self, message: Any) -> None:
        """Prepare for a delivery to be dropped because the very same one is running."""
        ...

    def give_back(self, message: Any) -> None:
        """Put the delivery of a lost run back at once, unless it is somebody else's by now; it is not acknowledged."""
        ...

    def leave(self, message: Any) -> bool:
        """Make acknowledging this delivery have no effect; False where that cannot be done."""
        ...

    def recover(self, job: StalledJob) -> bool | None:
        """Put a dead run's message back; None when it is not this broker's."""
        ...

    def abandon(self, job: StalledJob) -> None:
        """Count a dead run's message as failed."""
        ...

    def watch(self, stopping: Event) -> None:
        """Bring back what dead workers had fetched and not begun, until ``stopping`` is set. Switches greenlets."""
        ...


def deliveries_of(broker: Any, connection: Any, options: LockOptions, held: Held) -> Deliveries:
    """
    Return the class for a broker.

    Raises:
        HostSetupError: messages of such a broker cannot be locked.

    """
    if isinstance(broker, RedisBroker):
        return RedisDeliveries(broker, options, held)
    if any(kind.__module__ == "dramatiq.brokers.rabbitmq" for kind in type(broker).__mro__):
        if connection is None:
            raise HostSetupError(
                broker, "locks are kept in Redis: write LockMiddleware(connection='redis://…') for this broker"
            )
        return OtherDeliveries(broker)
    raise HostSetupError(
        broker, "LockMiddleware works with RedisBroker and RabbitmqBroker: leave it out where you use another broker"
    )


def lock_queue(namespace: str, queue_name: str) -> str:
    """Return the queue of the locks of a Dramatiq queue: apps with other namespaces have others."""
    return percent_encoded(f"{namespace}.{queue_name}")


class RedisDeliveries:
    """Deliveries of the Redis broker: they have names, and going back is atomic."""

    def __init__(self, broker: RedisBroker, options: LockOptions, held: Held) -> None:
        self._broker: Any = broker
        self._dead_workers = DeadWorkers(broker, options, held, self._dropped_key)
        keep_delayed_messages(broker)

    @property
    def namespace(self) -> str:
        """See ``Deliveries``."""
        return str(self._broker.namespace)

    def name(self, message: Any) -> str | None:
        """See ``Deliveries``."""
        name: str | None = message.options.get("redis_message_id")
        return name

    def payload(self, message: Any) -> str:
        """See ``Deliveries``."""
        return json.dumps(
            {"dramatiq": self._broker.broker_id, "queue": message.queue_name, "delivery": self.name(message)}
        )

    def put_back(self, message: Any, delay_ms: int) -> None:
        """See ``Deliveries``."""
        self._broker.enqueue(message, delay=delay_ms)

    def keep_copy(self, message: Any) -> None:
        """Keep the body aside: acknowledging the copy deletes the body that it shares with the running delivery."""
        key = self._dropped_key(message.queue_name, self.name(message) or "")
        self._broker.client.set(key, message.encode(), px=DROPPED_KEPT_MS)

    def give_back(self, message: Any) -> None:
        """Move it from this worker's unacknowledged ones back to the queue; a no-op once the sweep has done so."""
        name = self.name(message)
        self.leave(message)
        self._broker.do_requeue(message.queue_name, name)
        self._dead_workers.restore_dropped(self._broker, self._broker.client, message.queue_name, str(name))

    def leave(self, message: Any) -> bool:
        """See ``Deliveries``. The broker acknowledges by name, and a name that it does not know changes nothing."""
        message.options["redis_message_id"] = f"left-{self.name(message)}"
        return True

    def recover(self, job: StalledJob) -> bool | None:
        """See ``Deliveries``."""
        return self._with_dead_worker(job, self._dead_workers.requeue)

    def abandon(self, job: StalledJob) -> None:
        """Move the message to the dead letters."""
        self._with_dead_worker(job, self._dead_workers.dead_letter)

    def watch(self, stopping: Event) -> None:
        """See ``Deliveries``."""
        while not stopping.wait(self._dead_workers.pass_every_s):
            try:
                self._dead_workers.look()
            except Exception as error:
                log_event(logging.WARNING, "dead workers not looked for", error=error)

    def _with_dead_worker(self, job: StalledJob, act: Callable[[str, str, str], None]) -> bool | None:
        payload = _read(job.payload)
        if payload is None or not payload.get("dramatiq"):
            return None
        if lock_queue(self.namespace, str(payload.get("queue"))) != job.queue:
            return None
        act(str(payload["dramatiq"]), str(payload["queue"]), str(payload["delivery"]))
        return True

    def _dropped_key(self, queue_name: str, name: str) -> str:
        return f"{self.namespace}:{queue_name}.dropped.{name}"


class OtherDeliveries:
    """Deliveries of RabbitMQ: it brings the messages of dead workers back by itself."""

    namespace = "dramatiq"

    def __init__(self, broker: Any) -> None:
        self._broker = broker

    def name(self, message: Any) -> str | None:
        """See ``Deliveries``: they have no names that outlive a connection."""
        return None

    def payload(self, message: Any) -> str:
        """See ``Deliveries``."""
        return json.dumps({"dramatiq": "", "queue": message.queue_name})

    def put_back(self, message: Any, delay_ms: int) -> None:
        """See ``Deliveries``."""
        self._broker.enqueue(message, delay=delay_ms)

    def keep_copy(self, message: Any) -> None:
        """Do nothing: without names no delivery is ever the same."""

    def give_back(self, message: Any) -> None:
        """See ``Deliveries``."""
        self.put_back(message, 0)

    def leave(self, message: Any) -> bool:
        """See ``Deliveries``."""
        return False

    def recover(self, job: StalledJob) -> bool | None:
        """See ``Deliveries``: the broker has put it back already."""
        payload = _read(job.payload)
        return True if payload is not None and payload.get("dramatiq") == "" else None

    def abandon(self, job: StalledJob) -> None:
        """Do nothing: the message is the broker's, and comes back until its own limit."""

    def watch(self, stopping: Event) -> None:
        """Do nothing: the broker sees its connections end."""


def _read(payload: bytes | str | None) -> dict[str, Any] | None:
    try:
        values = json.loads(payload or "")
    except ValueError:
        return None  # another host's
    return values if isinstance(values, dict) else None
