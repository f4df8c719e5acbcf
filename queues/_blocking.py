"""Many commands in one round trip over blocking Redis, packed in C: the library's pipeline costs twice as much."""

from collections.abc import Sequence
from typing import Any

import hiredis
from redis import Redis
from redis.exceptions import ResponseError

from queues._cluster import is_cluster
from queues._verbs import Args


def exchange(redis: Redis, commands: Sequence[Args]) -> list[Any]:
    """The raw replies, in order; what Redis refuses is an error among them. Tried again where the connection fails.

    Raises:
        redis.RedisError: Redis is away; what was sent may have happened, and more than once.
    """
    if is_cluster(redis):
        pipe = redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return pipe.execute(raise_on_error=False)
    packed = [b"".join(map(hiredis.pack_command, commands))]
    pool = redis.connection_pool
    connection: Any = pool.get_connection()

    def once() -> list[Any]:
        connection.send_packed_command(packed)
        return [_reply(connection) for _ in commands]

    try:
        replies: list[Any] = connection.retry.call_with_retry(once, lambda _: connection.disconnect())
    except BaseException:  # whatever it was, what comes next on this connection answers an old question
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return replies


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc
