"""The queues over the shared Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from manifold.queues import Policy, Queues
from manifold.settings import Settings
from tests.support.servers import Server

Use = Callable[[Queues], Awaitable[Any]]
POLICY = Policy.of(Settings(retention_days=1))


@pytest.fixture
def use(redis_server: Server, redis: Redis) -> Callable[..., Any]:
    """Run `body(queues)` on its own event loop."""

    def run(body: Use, policy: Policy = POLICY) -> Any:
        async def main() -> Any:
            async with AsyncRedis(port=redis_server.port) as client:
                return await body(Queues(client, policy))

        return asyncio.run(main())

    return run


def seqs_of(redis: Redis, key: str) -> list[int]:
    """The seqs of a queue in order."""
    found: Any = redis.zrange(key, 0, -1)
    return [int(seq) for seq in found]
