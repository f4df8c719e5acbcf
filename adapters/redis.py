"""Blocking Redis, for jobs and commands: one server or a cluster, as the URL says."""

from typing import Any, cast

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from contracts.redis_url import split_redis_url

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
