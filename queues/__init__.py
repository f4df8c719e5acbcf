"""The pending queues in Redis: entries in seq order, one in flight per owner, acknowledged away. A verb is one Lua script."""

from queues._batch import FIRST, LAST, Batch
from queues._census import Census, walk
from queues._cluster import is_cluster
from queues._connection import connect
from queues._loader import Ended, Forgotten, Loader, LoadResult
from queues._marks import NOT_LOADED, Marks
from queues._queues import EnqueueResult, Queues
from queues._replies import AckReply, Claim, ClaimWord, EndReply, EnqueueReply, Over, ReleaseReply, TouchReply
from queues._spoilt import is_spoilt
from queues._verbs import Policy, ReleaseReason
from queues._wakes import Wake

__all__ = [
    "FIRST",
    "LAST",
    "NOT_LOADED",
    "AckReply",
    "Batch",
    "Census",
    "Claim",
    "ClaimWord",
    "EndReply",
    "Ended",
    "EnqueueReply",
    "EnqueueResult",
    "Forgotten",
    "LoadResult",
    "Loader",
    "Marks",
    "Over",
    "Policy",
    "Queues",
    "ReleaseReason",
    "ReleaseReply",
    "TouchReply",
    "Wake",
    "connect",
    "is_cluster",
    "is_spoilt",
    "walk",
]
