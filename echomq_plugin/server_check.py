"""What a server must be able to do; asked once, at start, so that no tick has to find out."""

from __future__ import annotations

from collections.abc import Iterable

from redis.exceptions import NoPermissionError, ResponseError

from echomq_plugin.connections import Client, Connections
from echomq_plugin.errors import RedisCallError, ServerUnsuitableError
from echomq_plugin.keys import QueueKeys, has_hash_tag

PERMISSIONS = (
    "+evalsha +eval +script +get +set +del +exists +pttl +incr +hget +hset +hdel +hexists +hmget +hscan "
    "+srem +sadd +smembers +lrem +lpush +rpush +pexpire +time ~<prefix>:*"
)


def check_server(connections: Connections, queues: Iterable[QueueKeys]) -> None:
    """
    Check that the server can serve these queues. Switches greenlets.

    Raises:
        RedisCallError: the server does not answer.
        ServerUnsuitableError: it answers, but cannot do what the scripts need.

    """
    if connections.is_cluster:
        for keys in queues:
            if not has_hash_tag(keys.base):
                raise ServerUnsuitableError(
                    f"queue {keys.queue!r} has no hash tag, so a cluster would spread its keys over its nodes",
                    f"write queue='{{{keys.queue}}}' or prefix='{{{keys.prefix}}}'",
                )

    def ask(client: Client) -> None:
        client.execute_command("EVAL", "return cmsgpack.unpack(cmsgpack.pack('ok'))", 0)

    try:
        connections.call("check the server", ask)
    except RedisCallError as error:
        cause = error.__cause__
        if isinstance(cause, NoPermissionError):
            raise ServerUnsuitableError(
                f"this user may not run scripts ({cause})", f"grant it {PERMISSIONS}"
            ) from error
        if isinstance(cause, ResponseError) and "cmsgpack" in str(cause):
            raise ServerUnsuitableError(
                "the server's Lua has no cmsgpack",
                "use Redis 6.2 or newer, or Valkey; for fakeredis pass lua_modules=echomq_plugin.testing.lua_modules()",
            ) from error
        if isinstance(cause, ResponseError) and "unknown command" in str(cause).lower():
            raise ServerUnsuitableError("the server cannot run Lua scripts", "use Redis or Valkey") from error
        raise
