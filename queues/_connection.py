"""A connection to Redis that packs commands in C: in Python, packing the twenty parts of a verb costs more than all the rest."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from contracts.redis_url import split_redis_url
from queues._cluster import Cluster, is_cluster
from queues._scripts import LOADS

SPARES = 4  # connections kept at hand: a service has few exchanges at once


class _Sending(AbstractConnection):
    """A connection that writes without a task of its own for it.

    The library writes by way of `asyncio.wait_for`, which before Python 3.12 loses a cancellation that comes when the bytes are
    out (cpython issue 86296): a task that was told to end went on.
    """

    async def send_packed_command(self, command: bytes | str | Iterable[bytes], check_health: bool = True) -> None:
        """Send what is packed; connect before, if need be.

        Raises:
            redis.RedisError: it is not out, or not known to be.
        """
        library: Any = self  # which left these untyped
        if not self.is_connected:
            await library.connect_check_health(check_health=False)
        if check_health:
            await library.check_health()
        whole = command.encode() if isinstance(command, str) else command
        writer: asyncio.StreamWriter = library._writer
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
    """A plain connection, except for how it writes commands."""

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

    async def is_sound(self) -> bool:
        """Whether it is connected, and the other side has neither closed it nor said something that nobody asked for."""
        parser: Any = self._parser
        return self.is_connected and not await parser.can_read()

    async def _next_reply(self) -> Any:
        try:
            return await self.read_response()
        except ResponseError as exc:
            return exc


class _Pool(ConnectionPool):
    """Keeps some connections of `exchange` at hand; to the library they are in use, so it closes them, too.

    Its own way of giving a connection out and taking it back takes as long as a round trip of a few commands.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._spare: list[PackingConnection] = []

    async def borrow(self) -> PackingConnection:
        """A connection that can be used, to be given back."""
        while self._spare:
            connection = self._spare.pop()
            if await connection.is_sound():
                return connection
            await connection.disconnect(nowait=True)
            await self.release(connection)  # the library connects it anew when it gives it out
        library: Any = self  # which left this untyped
        return cast(PackingConnection, await library.get_connection())

    async def give_back(self, connection: PackingConnection) -> None:
        """Of many that were needed at once most go back to the library: what it counts as in use, no other command gets."""
        if len(self._spare) < SPARES:
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
    """The raw replies to many commands in one round trip, sent once; what Redis refuses is an error among them.

    Raises:
        redis.RedisError: the connection failed; what was sent may have happened.
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
    """A client of the Redis, or the Redis Cluster, at `url` for `Queues`; connects when it is first used. Close it with `aclose`.

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
