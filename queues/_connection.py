"""A connection to Redis that packs commands in C: in Python, packing the twenty parts of a verb costs more than all the rest."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import hiredis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from contracts.redis_url import split_redis_url
from queues._cluster import Cluster


class PackingConnection(Connection):
    """A plain connection, except for how it writes commands. TLS and Unix sockets (by the URL) keep the library's own way."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """One command as it goes over the wire."""
        return [_pack(args)]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Many commands in one piece."""
        return [b"".join([_pack(tuple(command)) for command in commands])]

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The raw replies to `commands`, which go out in one piece and are sent once; errors of Redis are among the replies.

        The library's pipeline does the same and asks for each reply whether it needs a timeout, a callback, a second try.
        """
        parser: Any = self._parser  # over hiredis, which is a dependency
        try:
            await self.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            replies: list[Any] = []
            while len(replies) < len(commands):
                reply = parser._reader.gets()
                if reply is NOT_ENOUGH_DATA:
                    reply = await self._next_reply()
                elif isinstance(reply, RedisConnectionError):
                    raise reply
                elif isinstance(reply, hiredis.PushNotification):
                    await parser.handle_push_response(reply)
                    continue
                replies.append(reply)
        except BaseException:  # whatever it was, what comes next on this connection answers an old question
            await self.disconnect(nowait=True)
            raise
        return replies

    async def _next_reply(self) -> Any:
        try:
            return await self.read_response()
        except ResponseError as exc:
            return exc


async def exchange(redis: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The raw replies to many commands in one round trip, sent once; what Redis refuses is an error among them.

    Raises:
        redis.RedisError: the connection failed; what was sent may have happened.
    """
    pool = redis.connection_pool
    if not issubclass(pool.connection_class, PackingConnection):
        pipe = redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return await pipe.execute(raise_on_error=False)
    connection: Any = await pool.get_connection()
    try:
        return cast(list[Any], await connection.exchange(commands))
    finally:
        await pool.release(connection)


def connect(url: str, **options: Any) -> Redis:
    """A client of the Redis, or the Redis Cluster, at `url` for `Queues`; connects when it is first used. Close it with `aclose`.

    `options` are those of the library's connections, such as `socket_timeout`. Both kinds of client have the same commands.
    """
    plain, is_cluster = split_redis_url(url)
    if is_cluster:
        kind = {} if plain.startswith("rediss:") else {"connection_class": PackingConnection}
        return cast(Redis, Cluster.at(plain, **kind, **options))
    pool = ConnectionPool.from_url(plain, connection_class=PackingConnection, **options)
    return Redis.from_pool(pool)


def _pack(args: tuple[Any, ...]) -> bytes:
    name = args[0]
    if isinstance(name, str) and " " in name:  # the library writes some commands as one word, such as `XGROUP CREATE`
        args = (*name.split(), *args[1:])
    packed: bytes = hiredis.pack_command(args)
    return packed
