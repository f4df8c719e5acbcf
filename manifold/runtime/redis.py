"""Blocking Redis, for jobs and commands: one server or a cluster, as the URL says."""

from typing import Any, cast
from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError
from redis.retry import Retry

from manifold.contracts.redis_url import split_redis_url

# What is sent here may be sent twice. A cluster needs about its node timeout to promote a replica.
_AGAIN = Retry(ExponentialBackoff(base=0.1, cap=2), 8)


class _Cluster(RedisCluster):
    """A cluster whose errors are RedisErrors, as those of one server are."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]  # the library left it untyped
        except RedisClusterException as exc:
            raise RedisConnectionError(str(exc)) from exc


def connect(url: str, **options: Any) -> Redis:
    """A blocking client of the Redis, or the Redis Cluster, at `url`; both kinds have the same commands.

    Raises:
        redis.ConnectionError: no node of a cluster answers. One server is asked for the first time by the first command.
    """
    plain, is_cluster = split_redis_url(url)
    if not is_cluster:
        return Redis.from_url(plain, **options)
    try:
        return cast(Redis, _Cluster.from_url(plain, **({"retry": _AGAIN} | options)))
    except RedisClusterException as exc:
        raise RedisConnectionError(str(exc)) from exc


def advice(url: str, exc: RedisError) -> str:
    """The meaning of an error of the Redis at `url`, and the remedy, for the operator who started a job."""
    named = f"Redis at {urlsplit(url).netloc.rpartition('@')[2]}"  # without a password
    if isinstance(exc, OutOfMemoryError):
        return f"{named} is out of memory{_memory(url)}: raise its maxmemory, then run this again; nothing is lost"
    remedy = "see that it runs and that MANIFOLD_REDIS_URL or MANIFOLD_REDIS_PORT names it, then run this again"
    return f"{named}: {exc}; {remedy}"


def _memory(url: str) -> str:
    """The memory that each node uses, in brackets; empty where Redis does not answer that."""
    of_cluster = split_redis_url(url)[1]
    try:
        with connect(url, socket_timeout=3) as redis:
            info: Any = redis.info("memory", **({"target_nodes": "primaries"} if of_cluster else {}))
    except RedisError:
        return ""
    nodes = info.values() if of_cluster else [info]
    return " (" + "; ".join(f"{node['used_memory']} bytes of maxmemory={node['maxmemory']}" for node in nodes) + ")"
