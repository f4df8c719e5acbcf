"""Populates compacted queues from the lake: merges live messages and their states into Redis, and undoes nothing newer there.

Payloads stay in the lake until a dispatcher needs them (`manifold.lake.ecq_payloads`).
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression, In
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from redis import Redis

from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE, StateKind
from manifold.queues import EcqLoader, LakeQueue, LoadResult, Policy
from manifold.queues.verbs.ecq import LiveMessage, Load
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate.ecq_fold import UNITED, FoldedQueue, folded, united, united_table
from pipelines.populate.ecq_news import AROUND_LOADING, REWOUND, Added, has_rows, left_over, loaded_at, unpopulated
from pipelines.populate.snapshot_range import ALL_ROWS, SnapshotRange
from pipelines.populate.worker_errors import SPOILT, Batches
from pipelines.populate.workers import counted
from pipelines.spark.needed import NeedsSpark

FEW = 100_000  # rows that are read here; more are Spark's
FEW_CLIENTS = 1000  # that a filter can name one by one
ROWS_A_PART = 400_000  # of one partition: a worker folds them in memory
INDEX_COLUMNS, STATE_COLUMNS = ("client_id", "seq", "key"), ("client_id", "acked_seq", "acked_at", "epoch", "kind")


def load_queues(
    spark: SparkSession | None, catalog: Catalog, settings: Settings, redis: Redis, *, now: datetime, everything: bool
) -> LoadResult:
    """Merge into Redis the queues about which something is new in the lake; with `everything` all that have a live message.

    New is a message that direct enqueue did not bring, or one from about when the queues were loaded, which may have come
    too late for that; and a rewind.

    Raises:
        NeedsSpark: there is too much to do without Spark; nothing has happened yet.
        redis.RedisError: Redis is away or refuses.
    """
    added = unpopulated(redis, catalog, everything=everything)
    since = None if everything else loaded_at(redis)
    if not has_rows(catalog, added, since):
        return LoadResult()
    rows = _by_spark(spark, settings, added, since) if spark is not None else _by_arrow(catalog, added, since)
    work = _loader(settings.redis, Policy.of(settings), round(now.timestamp() * 1000))
    done, words = counted(rows, work, ("owners", "offered", "queued"))
    return LoadResult(done["owners"], done["offered"], done["queued"], spoilt=words[SPOILT])


def _by_spark(spark: SparkSession, settings: Settings, added: Added, since: datetime | None) -> DataFrame:
    """The united rows of the clients concerned, all of a client's in one partition."""
    index, state = (_whole(spark, settings, each) for each in (added.index, added.state))
    if not added.is_everything:
        late = sf.col("applied") == sf.lit(False)
        if since is not None:
            late |= sf.col("ts") <= sf.lit(since + AROUND_LOADING)
        news = _new(spark, settings, added.index).where(late).select("client_id")
        rewound = _new(spark, settings, added.state).where(sf.col("kind") == StateKind.REWOUND.value).select("client_id")
        clients = news.unionByName(rewound).distinct().persist()
        index, state = (each.join(clients, "client_id", "left_semi") for each in (index, state))
    rows = added.index.rows + added.state.rows if added.is_everything else 0
    parts = max(spark.sparkContext.defaultParallelism, -(-rows // ROWS_A_PART))
    return united(index, state).repartition(parts, "client_id")


def _by_arrow(catalog: Catalog, added: Added, since: datetime | None) -> pa.Table:
    """The same, read by this process.

    Raises:
        NeedsSpark: they may be too many.
    """
    if added.is_everything:
        index = _read(catalog, added.index, ALL_ROWS, INDEX_COLUMNS)
        return united_table(index, _read(catalog, added.state, ALL_ROWS, STATE_COLUMNS))
    news = _few(catalog, added.index, left_over(since)).read(catalog, left_over(since), ("client_id",))
    rewound = _few(catalog, added.state, REWOUND).read(catalog, REWOUND, ("client_id",))
    clients = {client_id for rows in (news, rewound) for client_id in rows["client_id"].to_pylist()}
    if len(clients) > FEW_CLIENTS:
        raise NeedsSpark(f"the compacted queues of {len(clients)} clients are to be looked at")
    return rows_of(catalog, clients, added.index.end, added.state.end)


def rows_of(catalog: Catalog, clients: Iterable[str], index: int | None = None, state: int | None = None) -> pa.Table:
    """The united rows of a few clients, in these snapshots (None: main's)."""
    mine = In(term="client_id", literals=set(clients))
    found = []
    for table, snapshot_id, columns in ((ECQ_INDEX, index, INDEX_COLUMNS), (ECQ_STATE, state, STATE_COLUMNS)):
        found.append(catalog.load_table(table.identifier).scan(mine, columns, snapshot_id=snapshot_id).to_arrow())
    return united_table(*found)


def _few(catalog: Catalog, added: SnapshotRange, wanted: BooleanExpression) -> SnapshotRange:
    if (rows := added.most(catalog, wanted)) > FEW:
        raise NeedsSpark(f"{rows} rows of {added.table.name} are to be looked at")
    return added


def _read(catalog: Catalog, added: SnapshotRange, wanted: BooleanExpression, columns: tuple[str, ...]) -> pa.Table:
    return _few(catalog, added, wanted).read(catalog, wanted, columns)


def _whole(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    return spark.read.option("versionAsOf", added.end).table(f"{settings.catalog_name}.{added.table.identifier}")


def _new(spark: SparkSession, settings: Settings, added: SnapshotRange) -> DataFrame:
    if not added.rows:  # of no snapshots Spark makes no incremental scan
        return _whole(spark, settings, added).limit(0)
    reader = spark.read.option("start-snapshot-id", str(added.start)).option("end-snapshot-id", added.end)
    return reader.table(f"{settings.catalog_name}.{added.table.identifier}")


def _loader(url: str, policy: Policy, now_ms: int) -> Batches:
    """What each worker does with its clients."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.concat_tables([pa.Table.from_batches([b]).cast(UNITED) for b in batches] or [UNITED.empty_table()])
        loader = EcqLoader(connect(url), policy)
        done = loader.load((as_loaded(queue) for queue in folded(rows) if queue.live or queue.rows), now_ms)
        counts = {"owners": done.owners, "offered": done.offered, "queued": done.queued}
        yield pa.RecordBatch.from_pylist([counts | {SPOILT: "\n".join(done.spoilt) or None}])

    return load


def as_loaded(queue: FoldedQueue) -> LakeQueue:
    """A queue as Redis takes it."""
    if not queue.rows:
        return LakeQueue(queue.client_id, Load(0, None, None, [LiveMessage(seq, key, False) for seq, key in queue.live]))
    state = queue.state()
    at_ms = None if state.acked_at is None else round(state.acked_at.timestamp() * 1000)
    messages = [LiveMessage(seq, key, state.is_acknowledged(seq)) for seq, key in queue.live]
    return LakeQueue(queue.client_id, Load(state.epoch, state.acked_seq, at_ms, messages))
