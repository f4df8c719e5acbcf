"""The pending queues in Redis: fanout queues of vehicles and compacted queues of clients. See `manifold.queues.verbs`.

Guarantees: each verb is atomic and idempotent, a queue delivers its entries in seq order with one in flight, and an ended entry
never comes back. Depends on Redis and the contracts, but not on broker, archive or lake.
"""

from manifold.queues._batch import FIRST, LAST, Batch
from manifold.queues._brakes import KnownBrakes
from manifold.queues._bulk import LoadResult
from manifold.queues._cluster import is_cluster
from manifold.queues._commands import TriggerName, store_trigger
from manifold.queues._connection import connect, exchange
from manifold.queues._corrupt_keys import DELETE_KEYS, is_corrupt
from manifold.queues._drivers import AsyncBatch, BlockingBatch, execute
from manifold.queues._ecq_loader import EcqLoader, LakeQueue
from manifold.queues._loader import Ended, Forgotten, Loader
from manifold.queues._notifications import Wake
from manifold.queues._policy import Policy
from manifold.queues._queue_stats import NAMED_QUEUES, QueueStats, walk
from manifold.queues._queues import Queues
from manifold.queues._scripts import NO_SHARED_CODE, Script
from manifold.queues._watermarks import NOT_LOADED, Watermarks, why_not_loaded

__all__ = [
    "DELETE_KEYS",
    "FIRST",
    "LAST",
    "NAMED_QUEUES",
    "NOT_LOADED",
    "NO_SHARED_CODE",
    "AsyncBatch",
    "Batch",
    "BlockingBatch",
    "EcqLoader",
    "Ended",
    "Forgotten",
    "KnownBrakes",
    "LakeQueue",
    "LoadResult",
    "Loader",
    "Policy",
    "QueueStats",
    "Queues",
    "Script",
    "TriggerName",
    "Wake",
    "Watermarks",
    "connect",
    "exchange",
    "execute",
    "is_cluster",
    "is_corrupt",
    "store_trigger",
    "walk",
    "why_not_loaded",
]
