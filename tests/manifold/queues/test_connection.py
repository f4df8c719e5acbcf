"""Connections to Redis: cancelling a task that uses one ends the task."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from manifold.queues import connect
from manifold.queues._connection import exchange
from tests.support.servers import Server, free_port, start, stopping

STEPS = 60  # of the event loop: a command and its reply take about ten
MORE_THAN_A_SOCKET_HOLDS = 64 << 20
ASK: dict[str, Callable[[Redis], Awaitable[Any]]] = {
    "command": lambda redis: redis.ping(),
    "pipeline": lambda redis: _in_a_pipeline(redis),
    "exchange": lambda redis: exchange(redis, [("PING",)]),
}


async def _in_a_pipeline(redis: Redis) -> list[Any]:
    pipe = redis.pipeline(transaction=False)
    pipe.ping()
    return await pipe.execute()


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One Redis over TCP and over a Unix socket."""
    folder, port = tmp_path_factory.mktemp("redis"), free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--unixsocket", str(folder / "socket")]
    with stopping(start([*command, "--dir", str(folder)], port=port, log=folder / "redis.log")):
        yield {"tcp": f"redis://127.0.0.1:{port}/0", "unix": f"unix://{folder / 'socket'}"}


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_cancelled_task_ends_at_any_await(kind: str, urls: dict[str, str]) -> None:
    """`asyncio.wait_for` before Python 3.12 loses a cancellation that arrives when its awaitable has just finished."""

    async def goes_on_after() -> list[int]:
        redis = connect(urls[kind])

        async def again_and_again() -> None:
            while True:
                await redis.ping()

        found = []
        for steps in range(STEPS):
            task = asyncio.create_task(again_and_again())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            while (await asyncio.wait({task}, timeout=1))[1]:
                found.append(steps)
                task.cancel()
        await redis.aclose()
        return found

    assert asyncio.run(goes_on_after()) == []


def test_other_commands_get_a_connection_after_many_concurrent_exchanges(urls: dict[str, str]) -> None:
    most = 20

    async def goes_on() -> bool:
        redis = connect(urls["tcp"], max_connections=most)
        await asyncio.gather(*(exchange(redis, [("PING",)]) for _ in range(most)))
        answered: bool = await redis.ping()
        await redis.aclose()
        return answered

    assert asyncio.run(goes_on())


def test_a_server_that_does_not_read_is_a_timeout(own_redis: Server) -> None:
    async def too_much() -> None:
        redis = connect(f"redis://127.0.0.1:{own_redis.port}/0", socket_timeout=0.5, retry=Retry(NoBackoff(), 0))
        await redis.ping()
        os.kill(own_redis.pid, signal.SIGSTOP)
        try:
            with pytest.raises(RedisTimeoutError, match="writing"):
                await redis.set("key", b"." * MORE_THAN_A_SOCKET_HOLDS)
        finally:
            os.kill(own_redis.pid, signal.SIGCONT)
        assert await redis.ping()
        await redis.aclose()

    asyncio.run(too_much())


def test_a_connection_is_reused_unless_the_server_closed_it(own_redis: Server) -> None:
    async def client_id(redis: Redis) -> int:
        (found,) = await exchange(redis, [("CLIENT", "ID")])
        return int(found)

    async def clients() -> tuple[set[int], int, int]:
        url, once = f"redis://127.0.0.1:{own_redis.port}/0", Retry(NoBackoff(), 0)
        async with connect(url, retry=once) as redis, connect(url) as other:
            used = {await client_id(redis) for _ in range(10)}
            waiting = asyncio.create_task(exchange(redis, [("BLPOP", "nothing", 0)]))
            await asyncio.sleep(0)
            beside = await client_id(redis)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await other.client_kill_filter(_id=str(beside))
            async with asyncio.timeout(10):
                while await redis.connection_pool._spare[-2].is_sound():  # type: ignore[attr-defined]  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return used, beside, await client_id(redis)

    used, beside, after = asyncio.run(clients())
    assert len(used) == 1
    assert beside not in used  # a connection waiting for its reply is not shared
    assert after not in (used | {beside})


@pytest.mark.parametrize("how", ASK)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_an_idle_connection_closed_by_the_server_is_replaced(kind: str, how: str, urls: dict[str, str]) -> None:
    """As with Redis' `timeout 1`. Nothing is sent twice: the client does not retry."""

    async def answers() -> list[Any]:
        async with connect(urls[kind], retry=Retry(NoBackoff(), 0)) as redis, Redis.from_url(urls["tcp"]) as other:
            before = await ASK[how](redis)
            await other.client_kill_filter(_type="normal", skipme=True)
            return [before, await ASK[how](redis)]

    before, after = asyncio.run(answers())
    assert before == after


def test_a_server_that_hangs_up_at_once_is_an_error() -> None:
    accepted = 0

    async def abort(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(abort, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, connect(f"redis://127.0.0.1:{port}/0", retry=Retry(NoBackoff(), 0)) as redis:
            with pytest.raises(RedisConnectionError):
                await redis.ping()

    asyncio.run(ask())
    assert accepted == 1
