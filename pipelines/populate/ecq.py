"""Populates compacted queues from the lake: merges live messages and states into Redis, without undoing newer ones there.

Payloads stay in the lake until a dispatcher needs them (`manifold.lake.ecq_payloads`).
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

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
from pipelines.populate.ecq_news import AROUND_LOADING, Added, has_rows, loaded_at, unpopulated
from pipelines.populate.snapshot_range import SnapshotRange
from pipelines.populate.worker_errors import SPOILT, Batches
from pipelines.populate.workers import counted
from pipelines.spark.parallelism import parallelism

ROWS_PER_PARTITION = 400_000  # per partition: a worker folds them in memory


def load_queues(
    spark: SparkSession, catalog: Catalog, settings: Settings, redis: Redis, *, now: datetime, everything: bool
) -> LoadResult:
    """Merge into Redis the queues with something new in the lake; with `everything`, all that have a live message.

    New are rewinds, messages that direct enqueue did not bring, and messages from about the time when the queues were loaded:
    direct enqueue may have missed these.

    Raises:
        redis.RedisError: Redis is unavailable or refuses.
    """
    added = unpopulated(redis, catalog, everything=everything)
    since = None if everything else loaded_at(redis)
    if not has_rows(catalog, added, since):
        return LoadResult()
    rows = _rows_of_clients(spark, settings, added, since)
    work = _loader(settings.redis, Policy.of(settings), round(now.timestamp() * 1000))
    done, words = counted(rows, work, ("owners", "offered", "queued"))
    return LoadResult(done["owners"], done["offered"], done["queued"], spoilt=words[SPOILT])


def _rows_of_clients(spark: SparkSession, settings: Settings, added: Added, since: datetime | None) -> DataFrame:
    """The united rows of the affected clients, all of a client's in one partition."""
    index, state = (_read_table(spark, settings, each) for each in (added.index, added.state))
    if not added.is_everything:
        late = sf.col("applied") == sf.lit(False)
        if since is not None:
            late |= sf.col("ts") <= sf.lit(since + AROUND_LOADING)
        news = _new(spark, settings, added.index).where(late).select("client_id")
        rewound = _new(spark, settings, added.state).where(sf.col("kind") == StateKind.REWOUND.value).select("client_id")
        clients = news.unionByName(rewound).distinct().persist()
        index, state = (each.join(clients, "client_id", "left_semi") for each in (index, state))
    rows = added.index.rows + added.state.rows if added.is_everything else 0
    parts = max(parallelism(spark), -(-rows // ROWS_PER_PARTITION))
    return united(index, state).repartition(parts, "client_id")


def _read_table(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    return spark.read.option("versionAsOf", added.end).table(f"{settings.catalog_name}.{added.table.identifier}")


def _new(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    if not added.rows:  # Spark rejects an incremental scan of no snapshots
        return _read_table(spark, settings, added).limit(0)
    reader = spark.read.option("start-snapshot-id", str(added.start)).option("end-snapshot-id", added.end)
    return reader.table(f"{settings.catalog_name}.{added.table.identifier}")


def _loader(url: str, policy: Policy, now_ms: int) -> Batches:
    """Make the function that loads the queues of a partition's clients."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_tables([pa.Table.from_batches([b]).cast(UNITED) for b in batches] or [UNITED.empty_table()])
        loader, pending_from = EcqLoader(connect(url), policy), policy.ecq_pending_from(now_ms)
        done = loader.load((as_loaded(queue, pending_from) for queue in folded(rows) if queue.live or queue.rows), now_ms)
        counts = {"owners": done.owners, "offered": done.offered, "queued": done.queued}
        yield pa.RecordBatch.from_pylist([counts | {SPOILT: "\n".join(done.spoilt) or None}])

    return load


def as_loaded(queue: FoldedQueue, pending_from: int) -> LakeQueue:
    """The queue in the form that Redis loads, without messages that have expired, by record or by a seq below `pending_from`.

    Garbage collection records the latter as expired.
    """
    if not queue.rows:
        pending = [LiveMessage(seq, key, False) for seq, key in queue.live if seq >= pending_from]
        return LakeQueue(queue.client_id, Load(0, None, None, pending))
    state = queue.state()
    at_ms = None if state.acked_at is None else round(state.acked_at.timestamp() * 1000)
    messages = [LiveMessage(seq, key, state.is_acknowledged(seq)) for seq, key in queue.live if state.expired_at(seq) is None]
    messages = [message for message in messages if message.is_delivered or message.seq >= pending_from]
    return LakeQueue(queue.client_id, Load(state.epoch, state.acked_seq, at_ms, messages))
