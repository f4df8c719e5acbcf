"""Connections to Redis that pack commands in C, because packing the twenty parts of a verb in Python costs more than the rest."""

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
from manifold.queues._scripts import LOADS

IDLE_CONNECTIONS = 4  # connections kept at hand: a service has few exchanges at once


class _Sending(AbstractConnection):
    """A connection that writes without a task for each write, and is replaced if the server closed it while it was idle.

    The library writes through `asyncio.wait_for`. Before Python 3.12 that loses a cancellation which arrives just after the
    bytes are written (cpython issue 86296), so a cancelled task went on. And its pool ignores a closed connection while
    maintenance notifications are on, which is its default; its cluster client never checks.
    """

    _is_connecting = False

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect, if it is not.

        Raises:
            redis.RedisError: the server is away, or refuses this client.
        """
        library: Any = super()
        self._is_connecting = True
        try:
            await library.connect_check_health(*args, **kwargs)
        finally:
            self._is_connecting = False

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send a packed command; connect first if necessary.

        Raises:
            redis.RedisError: the command was not sent, or nobody knows whether it was.
        """
        library: Any = self  # which left these untyped
        # A server that hangs up during the handshake is an error, or one that always does would be asked for ever.
        if self.is_connected and not self._is_connecting and stream_reader(self).at_eof():
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await library.connect_check_health(check_health=False)
        if check_health:
            await library.check_health()
        whole = command.encode() if isinstance(command, str) else command
        writer = stream_writer(self)
        try:
            writer.writelines([whole] if isinstance(whole, bytes) else whole)
            if (
                writer.transport.get_write_buffer_size() > writer.transport.get_write_buffer_limits()[0]
            ):  # else nothing has to wait
                async with asyncio.timeout(self.socket_timeout):
                    await writer.drain()
        except BaseException as exc:  # part of it may be out: nothing can follow on this connection
            await self.disconnect(nowait=True)
            if isinstance(exc, TimeoutError):
                raise RedisTimeoutError("Timeout writing to socket") from None
            if isinstance(exc, OSError):
                raise RedisConnectionError(f"Error while writing to socket: {exc}") from exc
            raise


class PackingConnection(_Sending, Connection):
    """A TCP connection that packs commands in C."""

    def pack_command(self, *args: Any) -> list[bytes]:
        """The bytes of one command."""
        return [_pack(args)]

    def pack_commands(self, commands: Iterable[Iterable[Any]]) -> list[bytes]:
        """The bytes of many commands, in one piece."""
        return [b"".join([_pack(tuple(command)) for command in commands])]

    async def exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send `commands` once, in one piece; the raw replies in their order. An error of Redis is a reply.

        The library's pipeline does the same at a higher cost a reply: timeouts, callbacks and retries.
        """
        replies_read = parser(self)
        try:
            await self.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            replies: list[Any] = []
            while len(replies) < len(commands):
                reply = buffered_reply(replies_read)
                if reply is NOT_ENOUGH_DATA:
                    reply = await self._next_reply()
                elif isinstance(reply, RedisConnectionError):
                    raise reply
                elif isinstance(reply, hiredis.PushNotification):
                    await replies_read.handle_push_response(reply)
                    continue
                replies.append(reply)
        except BaseException:  # whatever it was, what comes next on this connection answers an old question
            await self.disconnect(nowait=True)
            raise
        return replies

    async def is_sound(self) -> bool:
        """Whether it is connected, not closed by the other side, and free of unread bytes."""
        return self.is_connected and not await parser(self).can_read()

    async def _next_reply(self) -> Any:
        try:
            return await self.read_response()
        except ResponseError as exc:
            return exc


class _Pool(ConnectionPool):
    """A pool that keeps a few connections of `exchange` ready. The library counts them as in use, so it closes them, too.

    Taking a connection from the library and releasing it costs as much as a round trip of a few commands.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._spare: list[PackingConnection] = []

    async def borrow(self) -> PackingConnection:
        """A usable connection; return it with `give_back`."""
        while self._spare:
            connection = self._spare.pop()
            if await connection.is_sound():
                return connection
            await connection.disconnect(nowait=True)
            await self.release(connection)  # the library connects it anew when it gives it out
        library: Any = self  # which left this untyped
        return cast(PackingConnection, await library.get_connection())

    async def give_back(self, connection: PackingConnection) -> None:
        """Keep the connection ready, or release it if `SPARES` are: a connection in use is not available to other commands."""
        if len(self._spare) < IDLE_CONNECTIONS:
            self._spare.append(connection)
        else:
            await self.release(connection)


class SecureConnection(_Sending, SSLConnection):
    """A connection with TLS."""


class LocalConnection(_Sending, UnixDomainSocketConnection):
    """A connection by a Unix socket."""


_KINDS: dict[str, type[AbstractConnection]] = {
    "redis": PackingConnection,
    "rediss": SecureConnection,
    "unix": LocalConnection,
}


async def exchange(redis: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send many commands once, in one round trip; the raw replies in their order. An error of Redis is a reply.

    Raises:
        redis.RedisError: the connection failed; the commands may have taken effect.
    """
    if is_cluster(redis) or not isinstance(redis.connection_pool, _Pool):
        if commands is LOADS and is_cluster(redis):  # no pipeline goes to all masters
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
    """A client of the Redis, or Redis Cluster, at `url`, for `Queues`. It connects when it is first used; close it with `aclose`.

    `options` are those of the library's connections, such as `socket_timeout`. Both kinds of client have the same commands.
    """
    plain, is_cluster = split_redis_url(url)
    scheme = urlsplit(plain).scheme
    if is_cluster:
        return cast(Redis, Cluster.at(plain, connection_class=_KINDS[scheme], **options))
    kind = _KINDS[scheme]
    pool = (_Pool if kind is PackingConnection else ConnectionPool).from_url(plain, **options)
    pool.connection_class = kind  # from_url knows the library's own kinds only
    return Redis.from_pool(pool)


def _pack(args: tuple[Any, ...]) -> bytes:
    name = args[0]
    if isinstance(name, str) and " " in name:  # the library writes some commands as one word, such as `XGROUP CREATE`
        args = (*name.split(), *args[1:])
    packed: bytes = hiredis.pack_command(args)
    return packed
