"""A connection to Redis that packs commands in C: in Python, packing the twenty parts of a verb costs more than all the rest."""

from collections.abc import Iterable
from typing import Any, cast

import hiredis
from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool

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
