"""History: what happened to an entry, a vehicle, a batch, or data, merged from the queues, the archive and the lake.

Each source is one module (`from_queues`, `from_archive`, `from_lake`); `merge` combines them:

    from manifold.history.merge import History

    history = History(settings, redis)                    # redis: `manifold.runtime.redis.connect(settings.redis)`
    history.vin("V1")                                     # list[EntryHistory]: every entry of a vehicle, oldest first
    history.vin_page("V1", Bounds(limit=100, before=seq)) # VehiclePage: its newest entries before this seq
    history.batches("task_1", Bounds())                   # BatchPage: triggers of a request_id, with the states of their entries
    history.compacted_queue("V1")                         # CompactedQueue: the client's live messages and position
    history.data("map_7")                                 # DataHistory | None: what was published under a data_id
    history.waiting("V1", 20)                             # number of waiting entries, and the first 20; reads Redis only

Every call blocks and is thread-safe. A service that has the lake open passes its catalog: `History(settings, redis, catalog)`.
Without a catalog, the lake's part of a result is requested from the API, and the lake is read in this process only if no API
responds (`lake_half`), because importing PyIceberg takes longer than most queries. For the same reason this package itself
imports only the result types, and `from_service` requests a whole page from the API at once.

Guarantees: everything acknowledged by a recorder appears exactly once, whether it is in the queues, the archive or the lake.
History is read-only, except that it makes recorders close open segments. It prints nothing and does not depend on Spark.
"""

from manifold.history.ecq import CompactedQueue, LiveMessage, Page
from manifold.history.entry import OPEN, BatchHistory, BatchPage, Bounds, DataHistory, EntryHistory, VehiclePage

__all__ = [
    "OPEN",
    "BatchHistory",
    "BatchPage",
    "Bounds",
    "CompactedQueue",
    "DataHistory",
    "EntryHistory",
    "LiveMessage",
    "Page",
    "VehiclePage",
]
