"""The pending queues in Redis: entries in seq order, one in flight per owner, acknowledged away. See `queues.verbs`."""

from queues._batch import FIRST, LAST, Batch
from queues._cluster import is_cluster
from queues._connection import connect, exchange
from queues._drivers import AsyncBatch, BlockingBatch
from queues._loader import Ended, Forgotten, Loader, LoadResult
from queues._marks import NOT_LOADED, Marks
from queues._policy import Policy
from queues._queue_stats import NAMED_QUEUES, QueueStats, walk
from queues._queues import Queues
from queues._spoilt import is_spoilt
from queues._wakes import Wake

__all__ = [
    "FIRST",
    "LAST",
    "NAMED_QUEUES",
    "NOT_LOADED",
    "AsyncBatch",
    "Batch",
    "BlockingBatch",
    "Ended",
    "Forgotten",
    "LoadResult",
    "Loader",
    "Marks",
    "Policy",
    "QueueStats",
    "Queues",
    "Wake",
    "connect",
    "exchange",
    "is_cluster",
    "is_spoilt",
    "walk",
]
