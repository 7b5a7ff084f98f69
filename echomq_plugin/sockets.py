"""
Connection classes of redis-py whose whole call has one time limit.

redis-py's own limits are per read, and name resolution has none. Where the calling thread has a gevent hub, sockets
wait through it and the caller's ``gevent.Timeout`` bounds everything. Elsewhere each connect, send and read gets what
is left of the call's deadline, and names are resolved in a thread that can be left behind.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Hashable
from typing import Any, cast

import gevent.socket as gevent_socket
from gevent import monkey
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from echomq_plugin.native import allocate_lock, start_thread


class Deadline:
    """When the call that is under way in one native thread has to be over."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: float | None = None

    def begin(self, limit_s: float) -> None:
        """Start a call."""
        self._at = time.monotonic() + limit_s

    def end(self) -> None:
        """End the call."""
        self._at = None

    def left_s(self, otherwise: float) -> float:
        """
        Return the seconds that are left; ``otherwise`` outside of a call.

        Raises:
            TimeoutError: there are none.

        """
        if self._at is None:
            return otherwise
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the limit of the call is over")
        return left


class GeventConnection(Connection):
    """A TCP connection on a gevent socket."""

    def __init__(self, *args: Any, deadline: Deadline, **settings: Any) -> None:
        super().__init__(*args, **settings)

    def _connect(self) -> Any:
        addresses = gevent_socket.getaddrinfo(self.host, self.port, self.socket_type, gevent_socket.SOCK_STREAM)
        return _first_that_answers(addresses, gevent_socket.socket, lambda: self.socket_connect_timeout, self.host)


class GeventUnixConnection(UnixDomainSocketConnection):
    """A connection to a unix socket on a gevent socket."""

    def __init__(self, *args: Any, deadline: Deadline, **settings: Any) -> None:
        super().__init__(*args, **settings)

    def _connect(self) -> Any:
        addresses = [(gevent_socket.AF_UNIX, gevent_socket.SOCK_STREAM, 0, "", self.path)]
        return _first_that_answers(addresses, gevent_socket.socket, lambda: self.socket_connect_timeout, self.path)


class _BoundedSocket:
    """A socket whose every wait ends with the call, also where bytes go on coming one by one."""

    def __init__(self, sock: Any, deadline: Deadline) -> None:
        self._wrapped = sock
        self._deadline = deadline
        self._timeout: Any = sock.gettimeout()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds
        self._wrapped.settimeout(seconds)

    def sendall(self, data: Any) -> None:
        self._apply_deadline()
        self._wrapped.sendall(data)

    def recv(self, *arguments: Any) -> Any:
        self._apply_deadline()
        return self._wrapped.recv(*arguments)

    def recv_into(self, *arguments: Any) -> Any:
        self._apply_deadline()
        return self._wrapped.recv_into(*arguments)

    def _apply_deadline(self) -> None:
        if self._timeout != 0:  # else it is a look at what is there, without a wait
            self._wrapped.settimeout(self._deadline.left_s(self._timeout))


class _WithDeadline:
    """Gives every send and every read what is left of the call's deadline."""

    socket_timeout: Any
    _deadline: Deadline
    _bounded: Any = None

    @property
    def _sock(self) -> Any:
        return self._bounded

    @_sock.setter
    def _sock(self, sock: Any) -> None:
        self._bounded = None if sock is None else _BoundedSocket(sock, self._deadline)


class PlainConnection(_WithDeadline, Connection):
    """A TCP connection on a plain socket, for threads without a hub."""

    def __init__(self, *args: Any, deadline: Deadline, **settings: Any) -> None:
        self._deadline = deadline
        super().__init__(*args, **settings)

    def _connect(self) -> Any:
        addresses = _resolve_within(self._deadline.left_s(self.socket_timeout), self.host, self.port, self.socket_type)
        return _first_that_answers(addresses, socket.socket, self._left_s, self.host)

    def _left_s(self) -> float:
        return self._deadline.left_s(self.socket_connect_timeout or self.socket_timeout)


class PlainUnixConnection(_WithDeadline, UnixDomainSocketConnection):
    """A connection to a unix socket on a plain socket, for threads without a hub."""

    def __init__(self, *args: Any, deadline: Deadline, **settings: Any) -> None:
        self._deadline = deadline
        super().__init__(*args, **settings)


def connection_class(original: type[Any], *, on_hub: bool) -> type[Any] | None:
    """
    Return the form of one of redis-py's connection classes to use; None for a class that is not redis-py's own.

    Args:
        original: the class that the host's client uses.
        on_hub: whether the calling native thread has a gevent hub. TLS in a process that is not patched gets plain
            sockets all the same: a plain ``ssl`` context cannot wrap a gevent socket.

    """
    if not original.__module__.startswith("redis."):
        return None
    patched_tls = monkey.is_module_patched("ssl")
    waits_on_hub = on_hub and (patched_tls or not issubclass(original, SSLConnection))
    return _derived(cast("Hashable", original), waits_on_hub)


@functools.cache
def _derived(original: Any, on_hub: bool) -> type[Any] | None:
    if issubclass(original, UnixDomainSocketConnection):
        return GeventUnixConnection if on_hub else PlainUnixConnection
    base = GeventConnection if on_hub else PlainConnection
    if original is Connection:
        return base
    if issubclass(original, Connection):
        # After the original and before Connection, so that `super()._connect()` of a TLS or Sentinel class comes here.
        return type(base.__name__ + original.__name__, (original, base), {})
    return None


def _first_that_answers(
    addresses: Any, make_socket: Callable[..., Any], limit_s: Callable[[], float | None], name: object
) -> Any:
    error: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        sock = make_socket(family, kind, protocol)
        try:
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.settimeout(limit_s())
            sock.connect(address)
        except OSError as failed:
            error = failed
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error or OSError(f"{name} has no address")


def _resolve_within(limit_s: float, host: str, port: int, family: int) -> Any:
    """Resolve a name natively; the resolver cannot be interrupted, so a slow one is left behind in its thread."""
    answer: list[Any] = []
    done = allocate_lock()
    done.acquire()

    def resolve() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except Exception as error:  # also of a name that is none: a UnicodeError
            answer.append(error)
        finally:
            done.release()

    start_thread(resolve)
    if not done.acquire(True, limit_s):
        raise TimeoutError(f"the name {host!r} was not resolved in time")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]
