"""The data sources that all routes share: Redis, the lake, and the campaigns."""

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

REDIS_TIMEOUT_S = 5.0  # for connecting, and for each reply


@dataclass(slots=True)
class Sources:
    """Redis, the lake and the campaigns, and the health of Redis and the lake."""

    settings: Settings
    redis: Redis = field(init=False)
    lake: Lake = field(init=False)
    policy: Policy = field(init=False)
    campaigns: Campaigns = field(init=False)
    _blocking_redis: BlockingRedis | None = None
    _connect_lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.redis = connect(self.settings.redis, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S)
        self.lake = Lake(self.settings)
        self.policy = Policy.of(self.settings)
        self.campaigns = Campaigns(self.settings)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Within the block, watch whether the lake is readable; at its end, close all sources."""
        watch = asyncio.create_task(self.lake.watch(), name="api.lake")
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait((watch,))
            self.lake.close()
            await self.redis.aclose()
            if self._blocking_redis is not None:
                self._blocking_redis.close()

    def blocking_redis(self) -> BlockingRedis:
        """Return the blocking Redis client for the threads that read the lake. It is created on first use.

        Raises:
            redis.RedisError: Redis is a cluster, and its nodes cannot be fetched.
        """
        with self._connect_lock:
            if self._blocking_redis is None:
                self._blocking_redis = connect_blocking(
                    self.settings.redis, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S
                )
            return self._blocking_redis

    async def health(self) -> Health:
        """Return the readiness: healthy if Redis responds now and the last check could read the lake."""
        problems: dict[str, str] = {}
        try:
            await self.redis.ping()
        except RedisError as exc:
            problems["redis"] = f"no answer ({exc})"
        if self.lake.problem is not None:
            problems["lake"] = self.lake.problem
        details: dict[str, object] = {"redis": "redis" not in problems, "lake": "lake" not in problems}
        if problems:
            details["problems"] = [f"{source}: {problem}" for source, problem in problems.items()]
        return Health(not problems, details)
