"""Populates compacted queues: merges live messages and states of the lake into Redis, where newer messages and states stay.

Payloads stay in the lake until a dispatcher needs them (`manifold.lake.ecq_payloads`).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from math import ceil

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from redis import Redis

from manifold.contracts.tables import StateKind
from manifold.queues import EcqLoader, LakeQueue, LoadResult, Policy
from manifold.queues.verbs.ecq import LiveMessage, Load
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate.ecq_fold import UNITED, FoldedQueue, folded, united
from pipelines.populate.ecq_news import MISSED_AFTER_LOADING, Added, added_since_populate, may_require_loading, queues_loaded_at
from pipelines.populate.snapshot_range import SnapshotRange
from pipelines.populate.workers import SPOILT, BatchFunction, run_and_count
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000  # a worker folds the rows of a partition in memory


def load_queues(
    spark: SparkSession, catalog: Catalog, settings: Settings, redis: Redis, *, now: datetime, everything: bool
) -> LoadResult:
    """Merge the queues that have new rows in the lake into Redis; with `everything`, all queues that have any rows.

    New rows are rewinds and messages that were added since the last populate: of the messages, those that were not enqueued
    directly, and those from before or shortly after the loading of the queues (see `ecq_news`), which may be missing even so.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    added = added_since_populate(redis, catalog, everything=everything)
    loaded_at = None if everything else queues_loaded_at(redis)
    if not may_require_loading(catalog, added, loaded_at):
        return LoadResult()
    load = _queue_loader(settings.redis, Policy.of(settings), round(now.timestamp() * 1000))
    with _rows_of_clients(spark, settings, added, loaded_at) as rows:
        counts, names = run_and_count(rows, load, ("owners", "offered", "queued"))
    return LoadResult(counts["owners"], counts["offered"], counts["queued"], spoilt=names[SPOILT])


@contextmanager
def _rows_of_clients(spark: SparkSession, settings: Settings, added: Added, loaded_at: datetime | None) -> Iterator[DataFrame]:
    """Yield the united rows of the clients whose queues must be loaded, with all rows of a client in one partition.

    `loaded_at` is the instant at which the queues were loaded; None if it is not known.
    """
    index = _read_table(spark, settings, added.index)
    state = _read_table(spark, settings, added.state)
    if added.is_everything:
        row_count = added.index.rows + added.state.rows
        yield united(index, state).repartition(max(parallelism(spark), ceil(row_count / ROWS_PER_PARTITION)), "client_id")
        return
    clients = _clients_to_load(spark, settings, added, loaded_at).persist()
    try:
        index = index.join(clients, "client_id", "left_semi")
        state = state.join(clients, "client_id", "left_semi")
        yield united(index, state).repartition(parallelism(spark), "client_id")
    finally:
        clients.unpersist()


def _clients_to_load(spark: SparkSession, settings: Settings, added: Added, loaded_at: datetime | None) -> DataFrame:
    """The client_id of each client that was rewound, or has an added message that may be missing in its queue.

    The condition on messages is that of `ecq_news.may_require_loading`, also if `loaded_at` is None.
    """
    may_be_missing = sf.col("applied") == sf.lit(False)
    if loaded_at is not None:
        may_be_missing |= sf.col("ts") <= sf.lit(loaded_at + MISSED_AFTER_LOADING)
    with_messages = _read_added(spark, settings, added.index).where(may_be_missing).select("client_id")
    is_rewound = sf.col("kind") == StateKind.REWOUND.value
    rewound = _read_added(spark, settings, added.state).where(is_rewound).select("client_id")
    return with_messages.unionByName(rewound).distinct()


def _read_table(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    """All rows of the table at the end of the range."""
    return spark.read.option("versionAsOf", added.end).table(f"{settings.catalog_name}.{added.table.identifier}")


def _read_added(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    """The rows that the snapshots of the range added. The range must have a start."""
    if not added.rows:  # perhaps because start and end are the same snapshot: Spark rejects an incremental scan between these
        return _read_table(spark, settings, added).limit(0)
    reader = spark.read.option("start-snapshot-id", str(added.start)).option("end-snapshot-id", added.end)
    return reader.table(f"{settings.catalog_name}.{added.table.identifier}")


def _queue_loader(url: str, policy: Policy, now_ms: int) -> BatchFunction:
    """Make the function that loads the queues of a partition's clients, and yields one row: counts, and `SPOILT`.

    The partition has united rows (schema `UNITED`), and all of them for each of its clients.
    """

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]).cast(UNITED) for batch in batches]
        rows = pa.concat_tables(tables or [UNITED.empty_table()])  # an empty partition has no batches
        loader = EcqLoader(connect(url), policy)
        pending_from = policy.ecq_pending_from(now_ms)
        queues = (as_loaded(queue, pending_from) for queue in folded(rows))
        result = loader.load(queues, now_ms)
        counts = {"owners": result.owners, "offered": result.offered, "queued": result.queued}
        yield pa.RecordBatch.from_pylist([counts | {SPOILT: "\n".join(result.spoilt) or None}])

    return load


def as_loaded(queue: FoldedQueue, pending_from: int) -> LakeQueue:
    """Convert the queue into the form that Redis loads, without expired messages, and with acknowledged ones marked as delivered.

    A message has expired if the lake has recorded so. A pending message (not acknowledged) with a seq below `pending_from` has
    expired as well, although the lake records it only at the next garbage collection.
    """
    if not queue.state_rows:  # nothing was acknowledged, rewound or recorded as expired, so every message is pending
        pending = [LiveMessage(seq, key, is_delivered=False) for seq, key in queue.live if seq >= pending_from]
        return LakeQueue(queue.client_id, Load(epoch=0, acked_seq=None, acked_at_ms=None, messages=pending))
    state = queue.state()
    acked_at_ms = None if state.acked_at is None else round(state.acked_at.timestamp() * 1000)
    messages = []
    for seq, key in queue.live:
        is_acknowledged = state.is_acknowledged(seq)
        if state.expired_at(seq) is None and (is_acknowledged or seq >= pending_from):
            messages.append(LiveMessage(seq, key, is_delivered=is_acknowledged))
    return LakeQueue(queue.client_id, Load(state.epoch, state.acked_seq, acked_at_ms, messages))
