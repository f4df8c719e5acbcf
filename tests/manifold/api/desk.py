"""An API process over its own Redis and lake, and queries to it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from pyiceberg.catalog import Catalog
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from manifold.lake.catalog import open_catalog
from manifold.queues import Policy, Queues
from manifold.sandbox.platform.programs import environment
from manifold.settings import Settings
from tests.manifold.recorder.harness import Harness, running_harness
from tests.support.lake_rows import new_lake
from tests.support.redis_users import RedisUsers, refused
from tests.support.servers import Server, free_port, start_redis, start_service


@dataclass(slots=True)
class Desk:
    """The servers and the settings of the API."""

    settings: Settings
    redis: Server
    api: Server

    def get(self, path: str, **query: object) -> httpx.Response:
        """The response under /api/v1."""
        return self.ask(f"/api/v1{path}", params=query or None)

    def ask(self, path: str, method: str = "GET", **how: Any) -> httpx.Response:
        """The response to any path."""
        return httpx.request(method, f"{self.settings.api}{path}", timeout=30, trust_env=False, **how)

    def use(self, body: Callable[[Queues], Awaitable[Any]]) -> Any:
        """Run `body` with the queues."""

        async def run() -> Any:
            async with AsyncRedis.from_url(self.settings.redis) as client:
                return await body(Queues(client, Policy.of(self.settings)))

        return asyncio.run(run())

    @property
    def catalog(self) -> Catalog:
        """The lake, opened again."""
        return open_catalog(self.settings)


def settings_at(home: Path, redis_port: int, **more: Any) -> Settings:
    """The settings of an API without any other service."""
    ports = {name: free_port() for name in ("api_port", "recorder_port", "signals_port")}
    return Settings(home=home, redis_port=redis_port, **(ports | {"api_timeout_seconds": 60.0} | more))


@contextmanager
def desk_beside_a_recorder(folder: Path, **more: Any) -> Iterator[tuple[Desk, Harness]]:
    """An API and a recorder that share broker and Redis, where each logs in with its own rights."""
    with running_harness(folder) as harness:
        ports = {"mqtt_port": harness.broker.port, "recorder_port": harness.running.port}
        settings = settings_at(folder / "home", harness.redis_server.port, **(ports | more))
        assert harness.users is not None
        settings, as_api = (
            settings.model_copy(update={"redis_url": SecretStr(harness.users.url(user, harness.redis_server.port))})
            for user in ("tests", "api")
        )
        with api_of(as_api, folder / "api.log") as api:
            yield Desk(settings, harness.redis_server, api), harness


@contextmanager
def api_of(settings: Settings, log: Path, *, healthy: bool = True) -> Iterator[Server]:
    """`python -m manifold.api`, from its first response (or first healthy one) to the end of the block."""

    def ready() -> bool:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{settings.api}/healthz", timeout=2, trust_env=False)
            return answer.status_code == 200 or not healthy
        return False

    server = start_service("manifold.api", port=settings.api_port, log=log, env=environment(settings), ready=ready)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def desk_at(folder: Path, **more: Any) -> Iterator[Desk]:
    """A Redis, an empty lake and an API with the Redis rights of an environment; no command may be refused."""
    users = RedisUsers(folder / "users")
    redis = start_redis(folder / "redis", users=users.file)
    try:
        settings = settings_at(folder / "home", redis.port, **more)
        new_lake(settings)
        as_api = settings.model_copy(update={"redis_url": SecretStr(users.url("api", redis.port))})
        with api_of(as_api, folder / "api.log") as api:
            yield Desk(settings, redis, api)
        if redis.process.poll() is None:
            with Redis(port=redis.port) as asking:
                assert refused(asking) == []
    finally:
        redis.stop()
