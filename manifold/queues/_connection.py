"""Redis connections that pack commands in C.

Packing the twenty arguments of a verb in Python would cost more than everything else that a verb costs.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from manifold.contracts.redis_url import split_redis_url
from manifold.queues._cluster import Cluster, is_cluster
from manifold.queues._compat import NOT_ENOUGH_DATA, buffered_reply, parser, stream_reader, stream_writer
from manifold.queues._scripts import LOAD_COMMANDS

IDLE_CONNECTIONS = 4  # kept open in the pool; a service runs few exchanges at once


class _Sending(AbstractConnection):
    """A connection that writes without a task per write, and reconnects if the server closed it while it was idle.

    redis-py writes through `asyncio.wait_for`. Before Python 3.12, that loses a cancellation which arrives just after the bytes
    are written (cpython issue 86296), so a cancelled task kept running. Also, its pool ignores a closed connection while
    maintenance notifications are on, which is the default, and its cluster client never checks.
    """

    _is_connecting = False

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect if necessary, as redis-py does, and note meanwhile that the handshake is running.

        Raises:
            redis.RedisError: Redis is unavailable or rejects this client.
        """
        inherited: Any = super()  # redis-py does not type its methods
        self._is_connecting = True
        try:
            await inherited.connect_check_health(*args, **kwargs)
        finally:
            self._is_connecting = False

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send a packed command; connect first if necessary.

        Raises:
            redis.RedisError: the command was not sent, or only part of it.
        """
        library: Any = self
        # A connection closed during the handshake is an error. Reconnecting would loop forever if the server always closes it.
        if self.is_connected and not self._is_connecting and stream_reader(self).at_eof():
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await library.connect_check_health(check_health=False)
        if check_health:
            await library.check_health()
        if isinstance(command, str):
            command = command.encode()
        chunks = [command] if isinstance(command, bytes) else command
        writer = stream_writer(self)
        try:
            writer.writelines(chunks)
            low_water_bytes, _ = writer.transport.get_write_buffer_limits()
            # `drain` would return at once while the buffer is below its low-water mark, so do not even call it then.
            if writer.transport.get_write_buffer_size() > low_water_bytes:
                async with asyncio.timeout(self.socket_timeout):
                    await writer.drain()
        except BaseException as exc:  # the command may be half written, so this connection cannot be used again
            await self.disconnect(nowait=True)
            if isinstance(exc, TimeoutError):
                raise RedisTimeoutError("Timeout writing to socket") from None
            if isinstance(exc, OSError):
                raise RedisConnectionError(f"Error while writing to socket: {exc}") from exc
            raise


class PackingConnection(_Sending, Connection):
    """A TCP connection that packs commands in C."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack one command."""
        return [_pack(args)]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """Pack many commands into one buffer."""
        return [b"".join([_pack(tuple(command)) for command in commands])]

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send `commands` in one write, without retries, and return the raw replies in order. Redis errors are among them.

        redis-py's pipeline does the same at a higher cost per reply, because of its timeouts, callbacks and retries.
        """
        reply_parser = parser(self)
        try:
            await self.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            replies: list[Any] = []
            while len(replies) < len(commands):
                reply = buffered_reply(reply_parser)
                if reply is NOT_ENOUGH_DATA:
                    reply = await self._next_reply()
                elif isinstance(reply, RedisConnectionError):
                    raise reply
                elif isinstance(reply, hiredis.PushNotification):  # sent by the server on its own, so not one of the replies
                    await reply_parser.handle_push_response(reply)
                    continue
                replies.append(reply)
        except BaseException:  # the next command would read the remaining replies as its own
            await self.disconnect(nowait=True)
            raise
        return replies

    async def is_sound(self) -> bool:
        """Whether the connection is open on both sides, and no unread bytes have arrived."""
        return self.is_connected and not await parser(self).can_read()

    async def _next_reply(self) -> Any:
        """Wait for a reply. A Redis error is returned, not raised."""
        try:
            return await self.read_response()
        except ResponseError as exc:
            return exc


class _Pool(ConnectionPool):
    """A pool that keeps a few connections for `exchange` ready. redis-py counts them as in use, and so closes them with the pool.

    Getting a connection from redis-py and releasing it costs as much as a round trip of a few commands.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._spare: list[PackingConnection] = []

    async def borrow(self) -> PackingConnection:
        """Get a usable connection; pass it to `give_back` after use."""
        while self._spare:
            connection = self._spare.pop()
            if await connection.is_sound():
                return connection
            await connection.disconnect(nowait=True)
            await self.release(connection)  # redis-py reconnects this connection before it returns it again
        library: Any = self  # redis-py does not type this method
        return cast(PackingConnection, await library.get_connection())

    async def give_back(self, connection: PackingConnection) -> None:
        """Keep the connection ready for `borrow`, or release it to redis-py if `IDLE_CONNECTIONS` are kept already."""
        if len(self._spare) < IDLE_CONNECTIONS:
            self._spare.append(connection)
        else:
            await self.release(connection)


class SecureConnection(_Sending, SSLConnection):
    """A TLS connection."""


class LocalConnection(_Sending, UnixDomainSocketConnection):
    """A Unix socket connection."""


_CONNECTION_CLASSES: dict[str, type[AbstractConnection]] = {
    "redis": PackingConnection,
    "rediss": SecureConnection,
    "unix": LocalConnection,
}


async def exchange(redis: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send many commands in one round trip, without retries, and return the raw replies in order. Redis errors are among them.

    Raises:
        redis.RedisError: the connection failed; the commands may have taken effect.
    """
    if is_cluster(redis) or not isinstance(redis.connection_pool, _Pool):
        if commands is LOAD_COMMANDS and is_cluster(redis):  # a cluster pipeline cannot address every master
            return [await redis.script_load(text) for *_, text in commands]
        pipe = redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return await pipe.execute(raise_on_error=False)
    pool = redis.connection_pool
    connection = await pool.borrow()
    try:
        return await connection.exchange(commands)
    finally:
        await pool.give_back(connection)


def connect(url: str, **options: Any) -> Redis:
    """Create a client for the Redis or Redis Cluster at `url`. It connects on first use; close it with `aclose`.

    `options` are redis-py's connection options, such as `socket_timeout`. Both kinds of client have the same commands.
    """
    node_url, names_cluster = split_redis_url(url)
    connection_class = _CONNECTION_CLASSES[urlsplit(node_url).scheme]
    if names_cluster:
        return cast(Redis, Cluster.at(node_url, connection_class=connection_class, **options))
    pool_class = _Pool if connection_class is PackingConnection else ConnectionPool
    pool = pool_class.from_url(node_url, **options)
    pool.connection_class = connection_class  # `from_url` only chooses among redis-py's own classes
    return Redis.from_pool(pool)


def _pack(args: tuple[Any, ...]) -> bytes:
    """Pack one command in C."""
    name = args[0]
    if isinstance(name, str) and " " in name:  # redis-py passes some commands as one word, such as `XGROUP CREATE`
        args = (*name.split(), *args[1:])
    packed: bytes = hiredis.pack_command(args)
    return packed
