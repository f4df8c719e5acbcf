"""A Redis Cluster with the interface of a single Redis.

Every error is a RedisError, and the loss of a node makes the client reload the topology.
"""

from typing import Any

from redis.asyncio.cluster import ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as BlockingCluster
from redis.exceptions import ClusterDownError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# While one task reloads the topology, other tasks may find no usable node, or find that their connection is closed.
_TOPOLOGY_ERRORS = (RedisClusterException, AttributeError, IndexError, KeyError, RuntimeError)
_NODE_ERRORS = (RedisConnectionError, RedisTimeoutError, ClusterDownError)  # a node is down, or its slots have moved


_is_cluster: dict[type, bool] = {}  # by class of client; a cache, because issubclass on redis-py's abstract classes is slow


def is_cluster(redis: object) -> bool:
    """Whether this client talks to the nodes of a cluster, between which commands have no order. Called for every exchange."""
    client_class = type(redis)
    if client_class not in _is_cluster:
        _is_cluster[client_class] = issubclass(client_class, (Cluster, BlockingCluster))
    return _is_cluster[client_class]


class Cluster(RedisCluster):
    """A client that follows MOVED and ASK but never retries a command: only the caller knows whether a retry is safe."""

    @classmethod
    def at(cls, url: str, **options: Any) -> "Cluster":
        """Create a client that reads the topology from the node at `url` on first use."""
        connection_options: dict[str, Any] = {
            name: options.pop(name) for name in ("connection_class", "redis_connect_func") if name in options
        }
        options["retry"] = Retry(NoBackoff(), 0)
        client = cls.from_url(url, **options)
        assert isinstance(client, cls)
        # The constructor of redis-py does not accept these two options, but every node takes its options from this dict.
        client.connection_kwargs.update(connection_options)
        return client

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command on the node that holds its keys.

        Raises:
            redis.RedisError: Redis rejected it, no node answers, or no node serves the slot.
        """
        try:
            return await super().execute_command(*args, **kwargs)
        except _TOPOLOGY_ERRORS as exc:
            raise RedisConnectionError(repr(exc)) from exc
        except _NODE_ERRORS:
            await self.reload_topology()
            raise

    def pipeline(self, transaction: Any | None = None, shard_hint: Any | None = None) -> "ClusterPipeline":
        """Create a pipeline over all nodes. Each node runs its commands in order; the pipeline is never a transaction."""
        del transaction, shard_hint
        return _Pipeline(self, None)  # type: ignore[abstract]  # redis-py's own is abstract too, by its annotations

    async def reload_topology(self) -> None:
        """Reload the topology.

        Raises:
            redis.RedisError: no node answers, or the nodes disagree.
        """
        try:
            await self.nodes_manager.initialize()
            # The parser asks this node which arguments of a command are keys.
            self.commands_parser.node = self.nodes_manager.default_node
        except _TOPOLOGY_ERRORS as exc:
            raise RedisConnectionError(repr(exc)) from exc


class _Pipeline(ClusterPipeline):
    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        """Run the pipeline and return the replies. A lost node fails the whole pipeline, as with a single Redis."""
        client = self.cluster_client
        assert isinstance(client, Cluster)
        try:
            replies = await super().execute(raise_on_error, allow_redirections)
        except _TOPOLOGY_ERRORS as exc:
            raise RedisConnectionError(repr(exc)) from exc
        except _NODE_ERRORS:
            await client.reload_topology()
            raise
        for reply in replies:
            if isinstance(reply, (*_NODE_ERRORS, *_TOPOLOGY_ERRORS)):
                await client.reload_topology()
                raise RedisConnectionError(repr(reply)) from reply
        return replies
