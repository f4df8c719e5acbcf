"""The blocking Redis client for jobs and commands: one server or a cluster, depending on the URL."""

from typing import Any, cast
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError
from redis.retry import Retry

from manifold.contracts.redis_url import split_redis_url

# Commands sent through this client may be repeated. A cluster takes about its node timeout to promote a replica.
_AGAIN = Retry(ExponentialBackoff(base=0.1, cap=2), 8)


class _Cluster(RedisCluster):
    """A cluster client whose errors are RedisErrors, like those of a single server."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]  # untyped in redis-py
        except RedisClusterException as exc:
            raise RedisConnectionError(str(exc)) from exc


def connect(url: str, **options: Any) -> Redis:
    """Return a blocking client for the Redis server or Redis Cluster at `url`; both have the same commands.

    Raises:
        redis.ConnectionError: no node of a cluster answers. A single server is first contacted by the first command.
    """
    plain, is_cluster = split_redis_url(url)
    if not is_cluster:
        return Redis.from_url(plain, **options)
    try:
        return cast(Redis, _Cluster.from_url(plain, **({"retry": _AGAIN} | options)))
    except RedisClusterException as exc:
        raise RedisConnectionError(str(exc)) from exc


def advice(url: str, exc: RedisError) -> str:
    """Explain a Redis error and its remedy, for the operator who started a job."""
    named = f"Redis at {urlsplit(url).netloc.rpartition('@')[2]}"  # without the password
    if isinstance(exc, OutOfMemoryError):
        return f"{named} is out of memory{_memory(url)}: raise its maxmemory, then run this again; nothing is lost"
    remedy = "see that it runs and that MANIFOLD_REDIS_URL or MANIFOLD_REDIS_PORT names it, then run this again"
    return f"{named}: {exc}; {remedy}"


def _memory(url: str) -> str:
    """Return the memory use of each node, in brackets; empty if Redis does not answer."""
    of_cluster = split_redis_url(url)[1]
    try:
        with connect(url, socket_timeout=3) as redis:
            info: Any = redis.info("memory", **({"target_nodes": "primaries"} if of_cluster else {}))
    except RedisError:
        return ""
    nodes = info.values() if of_cluster else [info]
    return " (" + "; ".join(f"{node['used_memory']} bytes of maxmemory={node['maxmemory']}" for node in nodes) + ")"
