"""History: what happened to an entry, a vehicle, a batch, or data: one answer from the queues, the archive and the lake.

Each source is one module (`from_queues`, `from_archive`, `from_lake`), and `merge` makes one answer of what they say:

    from manifold.history.merge import History

    history = History(settings, redis)                    # redis: `manifold.runtime.redis.connect(settings.redis)`
    history.vin("V1")                                     # list[EntryHistory]: every entry of a vehicle, oldest first
    history.vin_page("V1", Bounds(limit=100, before=seq)) # VehiclePage: its newest entries before this seq
    history.batches("task_1", Bounds())                   # BatchPage: triggers of a request_id, and where their entries stand
    history.compacted_queue("V1")                         # CompactedQueue: what is live in the client's, and how it stands
    history.data("map_7")                                 # DataHistory | None: what was published under a data_id
    history.waiting("V1", 20)                             # what waits for a vehicle: how many, and the first; from Redis alone

Every call blocks, and may be made from several threads at once. `History(settings, redis, catalog)` reads the lake by that
catalog, as a service does that has it open. Without one, the lake's half is asked of the service that has it open, and read
here only if none answers (`lake_half`): loading PyIceberg takes longer than most answers. For the same reason this package
itself loads only the values that answers are made of, and `from_service` asks that service for a whole page at once.

It promises that what a recorder has acknowledged is told, once it is in the queues, the archive or the lake, and told once. It
changes nothing but open segments, which it asks recorders to close. It writes nothing to a terminal, and does not know Spark.
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
