"""The data sources of all routes, Redis and the lake, opened once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from threading import Lock

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

from manifold.api._campaign_record import Campaigns
from manifold.api._lake import Lake
from manifold.queues import Policy, connect
from manifold.runtime.http import Health
from manifold.runtime.redis import connect as connect_blocking
from manifold.settings import Settings

REDIS_S = 5.0  # timeout of a Redis reply


@dataclass(slots=True)
class Sources:
    """Redis and the lake, and their health."""

    settings: Settings
    redis: Redis = field(init=False)
    lake: Lake = field(init=False)
    policy: Policy = field(init=False)
    campaigns: Campaigns = field(init=False)
    _blocking: BlockingRedis | None = None
    _connecting: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.redis = connect(self.settings.redis, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
        self.lake, self.policy = Lake(self.settings), Policy.of(self.settings)
        self.campaigns = Campaigns(self.settings)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Watch the lake's readability within the block; then close everything."""
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
        """Return the client for the threads that read the lake; connects on first use, which for a cluster fetches its nodes.

        Raises:
            redis.RedisError: the cluster is unavailable.
        """
        with self._connecting:
            if self._blocking is None:
                self._blocking = connect_blocking(self.settings.redis, socket_timeout=REDIS_S, socket_connect_timeout=REDIS_S)
            return self._blocking

    async def health(self) -> Health:
        """Report readiness: Redis answers now, and the last check could read the lake."""
        problems: dict[str, object] = {}
        try:
            await self.redis.ping()
        except RedisError as exc:
            problems["redis"] = f"no answer ({exc})"
        if self.lake.problem is not None:
            problems["lake"] = self.lake.problem
        return Health(not problems, {"redis": "redis" not in problems, "lake": "lake" not in problems} | _details(problems))


def _details(problems: dict[str, object]) -> dict[str, object]:
    return {"problems": [f"{source}: {why}" for source, why in problems.items()]} if problems else {}
