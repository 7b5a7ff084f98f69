"""Every error this package raises: one root, data on the leaves, and in each message what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echomq_plugin.events import LostLock


class EchoMQError(Exception):
    """
    The root of all errors of this package.

    Catch it to catch anything that the package raises on purpose. Each can be pickled: queues store what a job raised,
    and process pools send it home.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep message and data; by default the message would be passed to ``__init__``."""
        return rebuilt, (type(self), self.args, self.__dict__)


def rebuilt(kind: type[BaseException], args: tuple[object, ...], data: dict[str, object]) -> BaseException:
    """Make an exception again from what it was pickled as."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class OptionError(EchoMQError, ValueError):
    """
    Raised when an option has a value that cannot work.

    Attributes:
        option: the option's name.
        value: what was given.

    """

    def __init__(self, option: str, value: object, instead: str) -> None:
        self.option = option
        self.value = value
        super().__init__(f"{option}={value!r}: {instead}")


class InvalidNameError(EchoMQError, ValueError):
    """
    Raised when a queue or a prefix cannot be part of a Redis key.

    Attributes:
        kind: ``"queue"`` or ``"prefix"``.
        name: what was given.

    """

    def __init__(self, kind: str, name: object, instead: str) -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"{kind} {name!r}: {instead}")


class InvalidIdError(EchoMQError, ValueError):
    """
    Raised when a job id, a token or the like has the right type but cannot be used as text.

    Attributes:
        kind: ``"job_id"``, ``"token"``, ``"delivery"`` or ``"payload"``.
        value: what was given.

    """

    def __init__(self, kind: str, value: object, instead: str) -> None:
        self.kind = kind
        self.value = value
        super().__init__(f"{kind} {value!r}: {instead}")


class IdTypeError(EchoMQError, TypeError):
    """
    Raised when a job id, a token or a delivery is neither text, nor an int, nor ASCII bytes; or a payload no bytes.

    Attributes:
        kind: ``"job_id"``, ``"token"``, ``"delivery"`` or ``"payload"``.
        value: what was given.

    """

    def __init__(self, kind: str, value: object, instead: str = "pass text, an int or ASCII bytes") -> None:
        self.kind = kind
        self.value = value
        super().__init__(f"{kind} {value!r} is a {type(value).__name__}: {instead}")


class ConnectionKindError(EchoMQError, TypeError):
    """
    Raised when ``connection`` is nothing that settings of a Redis server can be read from.

    Attributes:
        connection: what was given.

    """

    def __init__(self, connection: object, instead: str) -> None:
        self.connection = connection
        super().__init__(f"connection {type(connection).__name__}: {instead}")


class MissingExtraError(EchoMQError, ImportError):
    """
    Raised when a feature needs a package that its extra would have installed.

    Attributes:
        extra: the extra's name.

    """

    def __init__(self, extra: str, needed_for: str) -> None:
        self.extra = extra
        super().__init__(f"{needed_for} needs the extra {extra!r}: pip install 'echomq-plugin[{extra}]'")


class HostSetupError(EchoMQError, TypeError):
    """
    Raised at set-up when a part of the host cannot be used: a storage or a broker of the wrong kind, say.

    Attributes:
        part: what was given.

    """

    def __init__(self, part: object, instead: str) -> None:
        self.part = part
        super().__init__(f"{type(part).__name__}: {instead}")


class HostVersionError(EchoMQError, ImportError):
    """
    Raised when an adapter's host is installed in a version that the adapter was not written for.

    Attributes:
        host: the host's distribution name.
        version: the version found.

    """

    def __init__(self, host: str, version: str, supported: str) -> None:
        self.host = host
        self.version = version
        super().__init__(f"{host} {version} is not supported: install {host} {supported}")


class RedisCallError(EchoMQError):
    """
    Raised when a call to Redis gave no usable answer: what it did on the server is unknown.

    The driver's error, where there is one, is the ``__cause__``.

    Attributes:
        operation: what was asked for, in words.
        reason: why there is no answer, in words.

    """

    def __init__(self, operation: str, reason: str) -> None:
        self.operation = operation
        self.reason = reason
        super().__init__(f"Redis gave no answer to {operation!r}: {reason}")


class ServerUnsuitableError(EchoMQError):
    """
    Raised at start when the server answers but cannot serve this package.

    Attributes:
        reason: what is missing, in words.

    """

    def __init__(self, reason: str, instead: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {instead}")


class AttachError(EchoMQError):
    """Raised when the library cannot be attached to a plugin manager as asked."""


class HookMarkerError(AttachError):
    """
    Raised when a plugin has a function that is named like a hook but that pluggy would ignore.

    Attributes:
        plugin_name: the plugin's name in its manager.
        function: the function's name.

    """

    def __init__(self, plugin_name: str, function: str, instead: str) -> None:
        self.plugin_name = plugin_name
        self.function = function
        super().__init__(f"plugin {plugin_name!r} has {function!r}: {instead}")


class ShadowedHookError(AttachError):
    """
    Raised when another plugin implements ``echomq_job_start`` or ``echomq_job_finish`` and jobs would run unlocked.

    Attributes:
        plugin_name: the plugin's name in its manager.
        hook: the hook's name.

    """

    def __init__(self, plugin_name: str, hook: str) -> None:
        self.plugin_name = plugin_name
        self.hook = hook
        super().__init__(
            f"plugin {plugin_name!r} implements {hook!r}, so jobs could run without a lock: "
            "make it a wrapper (wrapper=True) or use one of the notification hooks"
        )


class LockHeldError(EchoMQError):
    """
    Raised by ``echomq_job_start`` when another run of the job holds its lock. The job must not run now.

    Only a delivery with ``same_delivery`` may be dropped: the holder's entry brings it back should the holder die.
    Every other one is put back and tried again after ``retry_in_ms``: it may be the job's own retry, pushed before
    its first run let go.

    Attributes:
        queue: the queue.
        job_id: the job.
        same_delivery: whether the running job came from this very delivery.
        retry_in_ms: how long to wait before the next try, in ms.

    """

    def __init__(self, queue: str, job_id: str, *, same_delivery: bool, retry_in_ms: int) -> None:
        self.queue = queue
        self.job_id = job_id
        self.same_delivery = same_delivery
        self.retry_in_ms = retry_in_ms
        advice = "drop this delivery" if same_delivery else f"put it back and try again in {retry_in_ms} ms"
        super().__init__(f"job {job_id!r} of queue {queue!r} is running elsewhere: {advice}")


class StartUndecidedError(EchoMQError):
    """
    Raised by ``echomq_job_start`` when Redis gave no answer. The job must not run: put its delivery back.

    Should the lock have been taken after all, it is given up in the background.

    Attributes:
        queue: the queue.
        job_id: the job.

    """

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(f"nobody knows who holds job {job_id!r} of queue {queue!r}: put the delivery back")


class OwnershipUnknownError(EchoMQError):
    """
    Raised by ``Lock.confirm`` when Redis gave no answer. Write no result until it does.

    Attributes:
        queue: the queue.
        job_id: the job.

    """

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(f"nobody knows whether job {job_id!r} of queue {queue!r} is still ours: write nothing yet")


class LockLostError(EchoMQError):
    """
    Raised out of ``with plugin.job(…)`` when the job's lock was lost: another run may own the job, so write nothing.

    Attributes:
        queue: the queue.
        job_id: the job.
        lost: the report of the loss, or None where only the release showed it.

    """

    def __init__(self, queue: str, job_id: str, lost: LostLock | None) -> None:
        self.queue = queue
        self.job_id = job_id
        self.lost = lost
        why = f" ({lost.reason})" if lost is not None else ""
        super().__init__(f"the lock of job {job_id!r} of queue {queue!r} is lost{why}: write no result for this run")


class HookTimeLimitError(EchoMQError):
    """
    Logged when one implementation of a hook did not return within its time limit. The others are called all the same.

    Attributes:
        limit_ms: the limit, in ms.

    """

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        super().__init__(f"did not return within {limit_ms} ms: hand long work to a queue or a thread of your own")


class NobodyPutBackError(EchoMQError):
    """
    Reported when no implementation of ``echomq_job_stalled`` said True: the job's entry stays and its count too.

    Attributes:
        queue: the queue.
        job_id: the job.

    """

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(
            f"no plugin put job {job_id!r} of queue {queue!r} back: "
            "implement echomq_job_stalled and return True once the job is in its queue again"
        )
