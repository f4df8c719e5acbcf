"""The pending queues in Redis: fanout queues of vehicles, and compacted queues of clients. See `queues.verbs`.

It promises that each verb is atomic and may run twice, that a queue gives out its entries in seq order with one in flight, and
that an ended entry never comes back. It knows Redis and the contracts, and neither broker, archive nor lake.
"""

from queues._batch import FIRST, LAST, Batch
from queues._bulk import LoadResult
from queues._cluster import is_cluster
from queues._commands import TriggerName
from queues._connection import connect, exchange
from queues._drivers import AsyncBatch, BlockingBatch, execute
from queues._ecq_loader import EcqLoader, LakeQueue
from queues._loader import Ended, Forgotten, Loader
from queues._marks import NOT_LOADED, Marks
from queues._policy import Policy
from queues._queue_stats import NAMED_QUEUES, QueueStats, walk
from queues._queues import Queues
from queues._scripts import NOBODYS, Script
from queues._spoilt import is_spoilt
from queues._wakes import Wake

__all__ = [
    "FIRST",
    "LAST",
    "NAMED_QUEUES",
    "NOBODYS",
    "NOT_LOADED",
    "AsyncBatch",
    "Batch",
    "BlockingBatch",
    "EcqLoader",
    "Ended",
    "Forgotten",
    "LakeQueue",
    "LoadResult",
    "Loader",
    "Marks",
    "Policy",
    "QueueStats",
    "Queues",
    "Script",
    "TriggerName",
    "Wake",
    "connect",
    "exchange",
    "execute",
    "is_cluster",
    "is_spoilt",
    "walk",
]
