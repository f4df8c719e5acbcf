"""Connections to Redis that detect when Redis was restarted or replaced."""

import re
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError

from manifold.contracts.errors import message_of
from manifold.queues import connect, is_cluster
from manifold.settings import Settings

_CONNECT_TIMEOUT_S, _REPLY_TIMEOUT_S = 2, 30
_RUN_ID = re.compile(r"run_id:(\w+)")


class RestartGuard:
    """Permits connections only to the `expected` Redis, or to any Redis if that is None; in a cluster, to any expected master.

    Without this guard, the client would silently reconnect to a Redis that has restarted and lost its last second of writes. New
    triggers would then be queued there before the lost ones are replayed. A promoted replica may have lost as much.
    """

    def __init__(self) -> None:
        self.expected: str | None = None  # a run id, or those of all masters, joined by commas

    async def on_connect(self, connection: Any) -> None:
        """Called for each new connection, before its first command."""
        await connection.on_connect()
        if self.expected is None:
            return
        await connection.send_command("INFO", "server")
        connected_run_id = run_id_in(await connection.read_response())
        if connected_run_id not in self.expected.split(","):
            raise RedisConnectionError("Redis has restarted or failed over: its run id is another one")


def open_guarded(settings: Settings, run_id_guard: RestartGuard) -> Redis:
    """Create a client that never retries a command: the caller must know whether it reached Redis."""
    return connect(
        settings.redis,
        retry=Retry(NoBackoff(), 0),
        redis_connect_func=run_id_guard.on_connect,
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        socket_timeout=_REPLY_TIMEOUT_S,
    )


def open_plain(settings: Settings) -> Redis:
    """Create a client for commands that the caller may retry."""
    return connect(
        settings.redis,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=_CONNECT_TIMEOUT_S,
        socket_timeout=_REPLY_TIMEOUT_S,
    )


async def run_id(redis: Redis) -> str:
    """The run id, which changes each time Redis starts; for a cluster, the run ids of all masters, joined by commas.

    Raises:
        redis.RedisError: Redis, or one of the masters, is unavailable.
    """
    if not is_cluster(redis):
        info: Any = await redis.info("server")
        return str(info["run_id"])
    infos: Any = await redis.execute_command("INFO", "server", target_nodes="primaries")
    return ",".join(sorted(str(info["run_id"]) for info in infos.values()))


def why(exc: Exception) -> str:
    """Describe an error for the operator, with the remedy if Redis is out of memory."""
    if isinstance(exc, OutOfMemoryError):
        return "Redis is out of memory: raise maxmemory or let vehicles drain their queues; enqueueing resumes automatically"
    return message_of(exc)


def run_id_in(info: Any) -> str | None:
    """Parse the run id in a raw reply to INFO."""
    text = info.decode() if isinstance(info, bytes) else str(info)
    match = _RUN_ID.search(text)
    return match[1] if match else None
