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

# A cluster needs about its node timeout to promote a replica, so commands are retried for some ten seconds. Therefore callers
# must only send commands that may be repeated.
_CLUSTER_RETRY = Retry(ExponentialBackoff(base=0.1, cap=2), 8)


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
        redis.ConnectionError: no node of a cluster answers. A single server is contacted by the first command only.
    """
    plain_url, is_cluster = split_redis_url(url)
    if not is_cluster:
        return Redis.from_url(plain_url, **options)
    cluster_options = {"retry": _CLUSTER_RETRY} | options
    try:
        return cast(Redis, _Cluster.from_url(plain_url, **cluster_options))
    except RedisClusterException as exc:
        raise RedisConnectionError(str(exc)) from exc


def advice(url: str, exc: RedisError) -> str:
    """Explain a Redis error and its remedy, for the operator who started a job."""
    address_without_password = urlsplit(url).netloc.rpartition("@")[2]
    server = f"Redis at {address_without_password}"
    if isinstance(exc, OutOfMemoryError):
        return f"{server} is out of memory{_memory_use(url)}: raise its maxmemory, then run this again; nothing is lost"
    remedy = "see that it runs and that MANIFOLD_REDIS_URL or MANIFOLD_REDIS_PORT names it, then run this again"
    return f"{server}: {exc}; {remedy}"


def _memory_use(url: str) -> str:
    """Return the memory use of each node as text, in parentheses; empty if Redis does not answer."""
    _, is_cluster = split_redis_url(url)
    options = {"target_nodes": "primaries"} if is_cluster else {}
    try:
        with connect(url, socket_timeout=3) as redis:
            info: Any = redis.info("memory", **options)
    except RedisError:
        return ""
    nodes = info.values() if is_cluster else [info]
    uses = [f"{node['used_memory']} bytes of maxmemory={node['maxmemory']}" for node in nodes]
    return f" ({'; '.join(uses)})"
