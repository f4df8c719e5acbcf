"""Connections to Redis that notice when it is not the same Redis any more."""

import re
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from manifold.queues import connect, is_cluster
from manifold.settings import Settings

_CONNECT_S, _ANSWER_S = 2, 30
_RUN_ID = re.compile(r"run_id:(\w+)")


class RestartGuard:
    """Lets a connection be made only to the Redis that is `expected` (None: to any); of a cluster, only to one of its masters.

    Without it the client would reconnect silently, and a new trigger would be queued in a Redis that has lost the last
    second, before the lost triggers are offered again. A replica that was promoted has lost as much.
    """

    def __init__(self) -> None:
        self.expected: str | None = None

    async def on_connect(self, connection: Any) -> None:
        """Called for each new connection, before its first command."""
        await connection.on_connect()
        if self.expected is None:
            return
        await connection.send_command("INFO", "server")
        found = run_id_in(await connection.read_response())
        if found not in self.expected.split(","):
            raise RedisConnectionError("Redis has restarted or failed over: its run id is another one")


def open_guarded(settings: Settings, run_id_guard: RestartGuard) -> Redis:
    """A client that never tries a command twice: whether it reached Redis must be known."""
    return connect(
        settings.redis,
        retry=Retry(NoBackoff(), 0),
        redis_connect_func=run_id_guard.on_connect,
        socket_connect_timeout=_CONNECT_S,
        socket_timeout=_ANSWER_S,
    )


def open_plain(settings: Settings) -> Redis:
    """A client for what may wait and be tried again."""
    return connect(settings.redis, retry=Retry(NoBackoff(), 0), socket_connect_timeout=_CONNECT_S, socket_timeout=_ANSWER_S)


async def run_id(redis: Redis) -> str:
    """The identity that Redis gives itself at each start; of a cluster, those of all its masters, joined by commas.

    Raises:
        redis.RedisError: Redis, or one of the masters, is away.
    """
    if not is_cluster(redis):
        info: Any = await redis.info("server")
        return str(info["run_id"])
    of_masters: Any = await redis.execute_command("INFO", "server", target_nodes="primaries")
    return ",".join(sorted(str(info["run_id"]) for info in of_masters.values()))


def why(exc: Exception) -> str:
    """The meaning of an error for the operator of Redis, in words."""
    if isinstance(exc, OutOfMemoryError):
        return "Redis is out of memory: raise its maxmemory, or let vehicles take what is queued; it goes on by itself"
    return str(exc)


def run_id_in(info: Any) -> str | None:
    """The run id in a raw answer to INFO."""
    text = info.decode() if isinstance(info, bytes) else str(info)
    found = _RUN_ID.search(text)
    return found[1] if found else None
