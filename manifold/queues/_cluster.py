"""A Redis Cluster with the interface of a single Redis: every error is a RedisError; a lost node makes it reload the topology."""

from typing import Any

from redis.asyncio.cluster import ClusterPipeline, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster as BlockingCluster
from redis.exceptions import ClusterDownError, RedisClusterException
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# While one task reloads the topology, others may find no node to use, or their connection closed.
_TOPOLOGY_ERRORS = (RedisClusterException, AttributeError, IndexError, KeyError, RuntimeError)
_NODE_ERRORS = (RedisConnectionError, RedisTimeoutError, ClusterDownError)  # a node is down, or its slots have moved


_known: dict[type, bool] = {}  # by class of client: issubclass on redis-py's abstract classes takes microseconds


def is_cluster(redis: object) -> bool:
    """Whether this client talks to several nodes, between which commands have no order. Called for every exchange."""
    kind = type(redis)
    if kind not in _known:
        _known[kind] = issubclass(kind, (Cluster, BlockingCluster))
    return _known[kind]


class Cluster(RedisCluster):
    """A client that follows MOVED and ASK but never retries a command: only the caller knows whether a retry is safe."""

    @classmethod
    def at(cls, url: str, **options: Any) -> "Cluster":
        """Create a client that reads the topology from the node at `url` on first use."""
        of_connection: dict[str, Any] = {
            name: options.pop(name) for name in ("connection_class", "redis_connect_func") if name in options
        }
        options["retry"] = Retry(NoBackoff(), 0)
        client = cls.from_url(url, **options)
        assert isinstance(client, cls)
        # redis-py accepts these two options from its own subclasses only. Every node takes its connection options from here.
        client.connection_kwargs.update(of_connection)
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
        """A pipeline over all nodes, in order on each node; never a transaction."""
        del transaction, shard_hint
        return _Pipeline(self, None)  # type: ignore[abstract]  # redis-py's own is abstract too, by its annotations

    async def reload_topology(self) -> None:
        """Reload the topology.

        Raises:
            redis.RedisError: no node answers, or the nodes disagree.
        """
        try:
            await self.nodes_manager.initialize()
            self.commands_parser.node = self.nodes_manager.default_node  # the parser asks this node where a command has its keys
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
        lost = next((reply for reply in replies if isinstance(reply, (*_NODE_ERRORS, *_TOPOLOGY_ERRORS))), None)
        if lost is not None:
            await client.reload_topology()
            raise RedisConnectionError(repr(lost)) from lost
        return replies
