"""The two drivers that send a batch to Redis: asyncio for services, blocking for jobs."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import hiredis
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError

from manifold.queues._batch import Batch, Exchange, send_commands
from manifold.queues._cluster import is_cluster
from manifold.queues._connection import exchange
from manifold.queues._policy import Policy
from manifold.queues._scripts import LOAD_COMMANDS, Args

T = TypeVar("T")


class AsyncBatch(Batch):
    """A batch over asyncio."""

    def __init__(self, redis: AsyncRedis, policy: Policy) -> None:
        super().__init__(policy, of_cluster=is_cluster(redis))
        self._redis = redis

    async def run(self, *, tolerant: bool = False) -> list[Any]:
        """Send everything without retries and empty the batch; returns the replies that `exchanges` describes.

        Raises:
            redis.RedisError: the connection failed (the commands may have taken effect), or Redis rejected a command.
        """
        return await drive(self.exchanges(tolerant=tolerant), partial(exchange, self._redis))


class BlockingBatch(Batch):
    """A batch over blocking Redis."""

    def __init__(self, redis: Redis, policy: Policy) -> None:
        super().__init__(policy, of_cluster=is_cluster(redis))
        self._redis = redis

    def run(self, *, tolerant: bool = False) -> list[Any]:
        """Send everything, with retries if the connection fails, and empty the batch.

        Returns the replies that `exchanges` describes.

        Raises:
            redis.RedisError: Redis is unavailable (the commands may have taken effect, even more than once), or rejected a
                command.
        """
        exchanges = self.exchanges(tolerant=tolerant)
        try:
            commands = next(exchanges)
            while True:
                commands = exchanges.send(_exchange(self._redis, commands))
        except StopIteration as stop:
            replies: list[Any] = stop.value
            return replies


async def execute(redis: AsyncRedis, commands: list[Args]) -> list[Any]:
    """Send commands, including script calls, in one round trip and return the raw replies; missing scripts are loaded.

    Raises:
        redis.RedisError: the connection failed; the commands may have taken effect. A Redis error is returned as a reply.
    """
    return await drive(send_commands(commands), partial(exchange, redis))


async def drive(exchanges: Exchange[T], send: Callable[[list[Args]], Awaitable[list[Any]]]) -> T:
    """Run the generator `exchanges`: send the commands that it yields with `send`, and return its result."""
    try:
        commands = next(exchanges)
        while True:
            commands = exchanges.send(await send(commands))
    except StopIteration as stop:
        result: T = stop.value
        return result


def _exchange(redis: Redis, commands: list[Args]) -> list[Any]:
    """Send commands and return the raw replies. Packing and parsing in C halves the cost of redis-py's pipeline."""
    if is_cluster(redis):
        if commands is LOAD_COMMANDS:  # a cluster pipeline cannot address every master
            return [redis.script_load(text) for *_, text in commands]
        pipe = redis.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return pipe.execute(raise_on_error=False)
    packed = [b"".join(map(_pack, commands))]
    pool = redis.connection_pool
    connection: Any = pool.get_connection()

    def send_and_read() -> list[Any]:
        connection.send_packed_command(packed)
        return [_reply(connection) for _ in commands]

    try:
        # After a failure, disconnect, so that the retry reconnects.
        replies: list[Any] = connection.retry.call_with_retry(send_and_read, lambda _: connection.disconnect())
    except BaseException:  # the next command would read the remaining replies as its own
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    return replies


def _pack(command: Args) -> bytes:
    """Pack one command in C."""
    # Pass numbers as text. hiredis 3.5 does not check the result of `PyObject_Repr`, which is NULL if a signal handler raises
    # while it runs; so an interrupted job would end with a segmentation fault. The handlers of services do not raise.
    texts: Any = tuple([str(arg) if type(arg) is int or type(arg) is float else arg for arg in command])
    packed: bytes = hiredis.pack_command(texts)
    return packed


def _reply(connection: Any) -> Any:
    """Read one reply. A Redis error is returned, not raised."""
    try:
        return connection.read_response()
    except ResponseError as exc:
        return exc
