"""A Redis Cluster with the interface of a single Redis: each error is a RedisError, and after one the topology is read again."""

from typing import Any

from redis.asyncio.cluster import ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as BlockingCluster
from redis.exceptions import ClusterDownError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# While one task reads the topology anew, others may find the library without a node to ask, or a connection closed under them.
_TORN = (RedisClusterException, AttributeError, IndexError, KeyError, RuntimeError)
_MOVED_AWAY = (RedisConnectionError, RedisTimeoutError, ClusterDownError)  # a node is gone, or another one serves its slots


_known: dict[type, bool] = {}  # kinds of clients: of the library's abstract classes each answer takes some microseconds


def is_cluster(redis: object) -> bool:
    """Whether this client speaks with several nodes, between which commands have no order. Asked with every exchange."""
    kind = type(redis)
    if kind not in _known:
        _known[kind] = issubclass(kind, (Cluster, BlockingCluster))
    return _known[kind]


class Cluster(RedisCluster):
    """A client that follows MOVED and ASK but never retries a command: only the caller knows whether a repetition is safe."""

    @classmethod
    def at(cls, url: str, **options: Any) -> "Cluster":
        """A client that reads the topology from the node at `url` when it is first used."""
        of_connection: dict[str, Any] = {
            name: options.pop(name) for name in ("connection_class", "redis_connect_func") if name in options
        }
        options["retry"] = Retry(NoBackoff(), 0)
        client = cls.from_url(url, **options)
        assert isinstance(client, cls)
        # The library takes these two from its own subclasses only; every node gets its connections' options from here.
        client.connection_kwargs.update(of_connection)
        return client

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command on the node that holds its keys.

        Raises:
            redis.RedisError: Redis refused it, no node answers, or no node serves the slot.
        """
        try:
            return await super().execute_command(*args, **kwargs)
        except _TORN as exc:
            raise RedisConnectionError(repr(exc)) from exc
        except _MOVED_AWAY:
            await self.look_again()
            raise

    def pipeline(self, transaction: Any | None = None, shard_hint: Any | None = None) -> "ClusterPipeline":
        """A pipeline over all nodes, in order on each node; never a transaction."""
        del transaction, shard_hint
        return _Pipeline(self, None)  # type: ignore[abstract]  # as is the library's own, by its annotations alone

    async def look_again(self) -> None:
        """Read the topology again.

        Raises:
            redis.RedisError: no node answers, or the nodes do not agree.
        """
        try:
            await self.nodes_manager.initialize()
            self.commands_parser.node = self.nodes_manager.default_node  # which it asks where a command has its keys
        except _TORN as exc:
            raise RedisConnectionError(repr(exc)) from exc


class _Pipeline(ClusterPipeline):
    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        """The replies. A lost node is an error of the whole pipeline, as with a single Redis."""
        client = self.cluster_client
        assert isinstance(client, Cluster)
        try:
            replies = await super().execute(raise_on_error, allow_redirections)
        except _TORN as exc:
            raise RedisConnectionError(repr(exc)) from exc
        except _MOVED_AWAY:
            await client.look_again()
            raise
        lost = next((reply for reply in replies if isinstance(reply, (*_MOVED_AWAY, *_TORN))), None)
        if lost is not None:
            await client.look_again()
            raise RedisConnectionError(repr(lost)) from lost
        return replies
