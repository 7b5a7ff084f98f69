"""
Dramatiq: a lock for each message that runs. ``broker.add_middleware(LockMiddleware())``, after all other middleware.

On Redis a dead worker's messages come back through the broker's own atomic requeue. On RabbitMQ the lock and its
renewal work, and bringing messages back is left to the broker.
"""

from __future__ import annotations

from echomq_plugin.errors import MissingExtraError

try:
    import dramatiq as _host  # noqa: F401
except ImportError as error:
    raise MissingExtraError("dramatiq", "echomq_plugin.hosts.dramatiq") from error

from echomq_plugin.hosts.dramatiq.middleware import LockMiddleware

__all__ = ["LockMiddleware"]
