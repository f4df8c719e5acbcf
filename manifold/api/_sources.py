"""The sources that the routes read, Redis and the lake, opened once for all of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Lock

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.api._lake import Lake
from manifold.queues import Policy, connect
from manifold.runtime.http import Health
from manifold.runtime.redis import connect as connect_blocking
from manifold.settings import Settings

REDIS_S = 5.0  # that one answer of Redis may take


@dataclass(slots=True)
class Sources:
    """Redis and the lake, and how they are."""

    settings: Settings
    redis: Redis = field(init=False)
    lake: Lake = field(init=False)
    policy: Policy = field(init=False)
    _blocking: BlockingRedis | None = None
    _connecting: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.redis = connect(self.settings.redis, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
        self.lake, self.policy = Lake(self.settings), Policy.of(self.settings)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep an eye on the lake while the block runs; then let go of everything."""
        watching = asyncio.create_task(self.lake.watch(), name="api.lake")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait((watching,))
            self.lake.close()
            await self.redis.aclose()
            if self._blocking is not None:
                self._blocking.close()

    def blocking(self) -> BlockingRedis:
        """A client for the threads that read the lake; a cluster is asked for its nodes as soon as there is one.

        Raises:
            redis.RedisError: a cluster is away.
        """
        with self._connecting:
            if self._blocking is None:
                self._blocking = connect_blocking(self.settings.redis, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
            return self._blocking

    async def health(self) -> Health:
        """Ready to answer: Redis answers now, and the lake could be read lately."""
        problems: dict[str, object] = {}
        try:
            await self.redis.ping()
        except RedisError as exc:
            problems["redis"] = f"no answer ({exc})"
        if self.lake.problem is not None:
            problems["lake"] = self.lake.problem
        return Health(not problems, {"redis": "redis" not in problems, "lake": "lake" not in problems} | _said(problems))


def _said(problems: dict[str, object]) -> dict[str, object]:
    return {"problems": [f"{source}: {why}" for source, why in problems.items()]} if problems else {}
