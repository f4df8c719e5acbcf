"""Lake to queues: offer what is pending, and let the queues forget what the lake knows: `python -m pipelines populate`.

Safe beside running dispatchers, and safe to repeat: an entry that the queues have, or had until lately, is not queued again.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from adapters.redis import connect
from contracts import keys
from contracts.outcomes import Outcome, OutcomeRecord
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES
from pipelines.populate.few import ended_few, pending_few, unpopulated, wanted_since
from pipelines.populate.lock import populate_lock
from pipelines.populate.pending import candidates, pending
from pipelines.populate.stretch import Stretch, newest_before
from pipelines.populate.telling import Batches, telling, told
from queues import Loader, LoadResult, Policy

FEW = 200_000  # entries whose keys are sent to where the outcomes are, rather than the outcomes shuffled
ROWS_A_PART = 400_000  # entries of one partition: a worker groups them in memory
MOST_ROWS = 2_000_000  # entries that a worker holds at once, if one partition has many more
VEHICLES_AT_ONCE = 500
SUPERSEDED_BY = "a newer trigger of this request_id took its place"
REMEMBERED = timedelta(days=2)  # how far back the ended entries of an unknown Redis are looked up
SETTLED = timedelta(minutes=10)  # what was loaded so long ago is in Redis's file for good

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Populated:
    """What became of what was pending."""

    vehicles: int = 0
    offered: int = 0
    queued: int = 0  # of them, new to the queues
    superseded: int = 0
    forgotten: int = 0  # ended entries that the queues need not remember any more

    def to_json(self) -> str:
        """One line, for logs and for whoever started the job."""
        return json.dumps(asdict(self))


def populate(
    spark: SparkSession | None, catalog: Catalog, settings: Settings, *, now: datetime, everything: bool = False
) -> Populated:
    """Offer what is pending to the queues, and prune what they remember of ended entries.

    Args:
        spark: a session over the catalog; None: only if little is to be done.
        catalog: the same catalog in PyIceberg.
        settings: where Redis is, and how entries wait.
        now: the instant, timezone-aware, from which the retention counts back.
        everything: all that is pending, and mark the queues as loaded; else what the express hand-off left over
            since the last time.

    Raises:
        NeedsSpark: there is too much to do without Spark; nothing has happened yet.
        Retryable: another process is at it, or Redis lost the lock; nothing is lost, do it again.
        redis.RedisError: Redis is away or refuses.
    """
    redis = connect(settings.redis)
    with populate_lock(redis) as lock:
        ids, ended = unpopulated(redis, catalog, everything=everything)
        waiting: DataFrame | pa.Table
        gone: DataFrame | pa.Table
        if spark is None:
            waiting, gone = _few(catalog, settings, ids, ended, now, everything=everything)
        else:
            waiting, gone = _many(spark, settings, ids, ended, now, everything=everything)
        loaded = _load(waiting, settings, now) if ids.rows else LoadResult()
        lock.check()
        # Only now: an entry offered above may have ended in between, and only the queues' own memory knew.
        forgotten = _forget(gone, settings) if ended.rows else 0
        lock.check()
        redis.set(keys.DONE_PRUNED, ended.end)
        settled = newest_before(catalog, IDS, now - SETTLED)  # Redis may lose its last second, and that must be offered again
        if settled is not None:
            redis.set(keys.POPULATED, settled)
        if everything:
            Loader(redis, Policy.of(settings)).mark_loaded(_unix_ms(now))
    result = Populated(loaded.owners, loaded.offered, loaded.queued, len(loaded.superseded), forgotten)
    log.info("queues are populated", everything=everything, **asdict(result))
    return result


def _many(
    spark: SparkSession, settings: Settings, ids: Stretch, ended: Stretch, now: datetime, *, everything: bool
) -> tuple[DataFrame, DataFrame]:
    """What is pending, and (vin, seq) of what has ended lately."""
    since = now - timedelta(days=settings.retention_days)
    entries = candidates(_rows(spark, settings, ids), since=since, everything=everything)
    outcomes = spark.read.option("versionAsOf", ended.end).table(f"{settings.catalog_name}.{OUTCOMES.identifier}")
    parts = max(spark.sparkContext.defaultParallelism, -(-ids.rows // ROWS_A_PART))
    waiting = pending(entries, outcomes.where(sf.col("accepted_at") >= sf.lit(since)), parts=parts, few=ids.rows <= FEW)
    gone = _rows(spark, settings, ended)
    if ended.start is None:  # a new Redis remembers little; not to forget an entry costs some bytes and nothing else
        gone = gone.where(sf.col("ended_at") >= sf.lit(now - REMEMBERED))
    return waiting, gone.select("vin", "seq")


def _few(
    catalog: Catalog, settings: Settings, ids: Stretch, ended: Stretch, now: datetime, *, everything: bool
) -> tuple[pa.Table, pa.Table]:
    """The same, read by this process."""
    wanted = wanted_since(now - timedelta(days=settings.retention_days), everything=everything)
    gone = ended_few(catalog, ended, now - REMEMBERED if ended.start is None else None)
    return pending_few(catalog, ids, ended.end, wanted), gone


def _rows(spark: SparkSession, settings: Settings, stretch: Stretch) -> DataFrame:
    name = f"{settings.catalog_name}.{stretch.table.identifier}"
    if stretch.start is None:
        return spark.read.option("versionAsOf", stretch.end).table(name)
    return spark.read.option("start-snapshot-id", stretch.start).option("end-snapshot-id", stretch.end).table(name)


def _load(waiting: DataFrame | pa.Table, settings: Settings, now: datetime) -> LoadResult:
    load = _loader(settings.redis, Policy.of(settings), _unix_ms(now))
    done = _counted(waiting, load, ("owners", "offered", "queued", "superseded"))
    return LoadResult(done["owners"], done["offered"], done["queued"], [("", 0)] * done["superseded"])


def _counted(rows: DataFrame | pa.Table, work: Batches, names: tuple[str, ...]) -> dict[str, int]:
    """What `work` counts, where the rows are: in Spark's workers, or here."""
    if isinstance(rows, DataFrame):
        counts = rows.mapInArrow(telling(work, names), ", ".join(["problem string", *(f"{name} bigint" for name in names)]))
        sums = [sf.coalesce(sf.sum(name), sf.lit(0)).alias(name) for name in names]
        row = counts.agg(sf.max("problem").alias("problem"), *sums).first()
        assert row is not None  # an aggregation has one row
        if row["problem"] is not None:
            raise told(row["problem"])
        return {name: row[name] for name in names}
    batches = list(work(rows.to_batches()))
    return {name: sum(sum(batch[name].to_pylist()) for batch in batches) for name in names}


def _loader(url: str, policy: Policy, now_ms: int) -> Batches:
    """What each worker does with its vehicles: triggers first, so that no entry is in the queues without its own."""

    def load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        redis = connect(url)
        loader, stored = Loader(redis, policy), set[int]()
        for rows in _chunks(batches):
            triggers = {seq: said for seq, said in _triggers(rows).items() if seq not in stored}
            loader.store_triggers(triggers)
            stored.update(triggers)
            done = loader.offer(_by_owner(rows, with_request_id=policy.compaction), now_ms)
            superseded = (OutcomeRecord(o, s, Outcome.SUPERSEDED, now_ms, reason=SUPERSEDED_BY) for o, s in done.superseded)
            loader.add_outcomes(superseded)
            counts = {"owners": done.owners, "offered": done.offered, "queued": done.queued, "superseded": len(done.superseded)}
            yield pa.RecordBatch.from_pylist([counts])

    return load


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """A partition as a whole, or, where it has grown too large for that, in pieces."""
    piece: list[pa.RecordBatch] = []
    for batch in batches:
        piece.append(batch)
        if sum(b.num_rows for b in piece) >= MOST_ROWS:
            yield pa.Table.from_batches(piece)
            piece = []
    if piece:
        yield pa.Table.from_batches(piece)


def _triggers(rows: pa.Table) -> dict[int, tuple[str, str]]:
    """request_id and data_id of each seq among the rows."""
    distinct = rows.group_by("seq", use_threads=False).aggregate([("request_id", "first"), ("data_id", "first")]).to_pydict()
    said = zip(distinct["request_id_first"], distinct["data_id_first"], strict=True)
    return dict(zip(distinct["seq"], said, strict=True))


def _by_owner(rows: pa.Table, *, with_request_id: bool) -> Iterator[tuple[str, list[Any]]]:
    """Each vehicle with its entries, oldest first, as `Loader.offer` takes them. Hashing costs a fraction of sorting all rows."""
    lists = [("seq", "list"), ("request_id", "list")] if with_request_id else [("seq", "list")]
    grouped = rows.group_by("vin", use_threads=False).aggregate(lists)
    for batch in grouped.to_batches(max_chunksize=VEHICLES_AT_ONCE):
        owners, seqs = batch["vin"].to_pylist(), batch["seq_list"].to_pylist()
        if with_request_id:
            for owner, mine, requests in zip(owners, seqs, batch["request_id_list"].to_pylist(), strict=True):
                yield owner, [part for entry in sorted(zip(mine, requests, strict=True)) for part in entry]
        else:
            for owner, mine in zip(owners, seqs, strict=True):
                yield owner, sorted(mine)


def _forget(gone: DataFrame | pa.Table, settings: Settings) -> int:
    url, policy = settings.redis, Policy.of(settings)

    def forget(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loader = Loader(connect(url), policy)
        for batch in batches:
            pairs = zip(batch["vin"].to_pylist(), batch["seq"].to_pylist(), strict=True)
            yield pa.RecordBatch.from_pydict({"forgotten": [loader.forget_done(pairs)]})

    return _counted(gone, forget, ("forgotten",))["forgotten"]


def _unix_ms(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)
