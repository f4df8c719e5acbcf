"""Queues against lake: what is missing, extra or out of order, and its repair: `python -m pipelines verify`.

Works beside everything else. The lake is read as it was at one moment, and the queues after it, so what differs may only have
changed in between: each difference is looked at once more in the queues, live, and against the newest outcomes, before it counts.
"""

import io
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import reduce

import pyarrow.parquet as pq
import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from adapters.lake import ensure_tables
from adapters.redis import connect
from adapters.reports import QUEUES, open_reports
from contracts.seq import COUNTER_BITS, MAX_NODE, MAX_SEQ, datetime_of
from contracts.settings import Settings
from contracts.tables import IDS, OUTCOMES, SEGMENTS, Table
from pipelines.ingest.publish import main_snapshots
from pipelines.maintenance.verify_ecq import compare_queues
from pipelines.maintenance.verify_outcomes import on_their_way
from pipelines.maintenance.verify_redis import ROWS, Difference, QueueKey, recheck, walk
from pipelines.maintenance.verify_repair import repair_queues
from pipelines.populate.pending import KEYS, pending
from pipelines.populate.snapshot_range import newest_seqs
from queues import Loader, Policy

MOST_REPORTED = 1_000_000  # differences that the report lists one by one; all are counted
ROWS_A_PART = 400_000
DIFFERENCES = "difference string, vin string, seq bigint, request_id string, data_id string, outcome string"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Verified:
    """The differences between queues and lake, and how many were repaired."""

    loaded: bool  # false: Redis was wiped, and a rebuild is needed
    in_queues: int  # pending and parked entries
    too_young: int  # of them, not ingested yet
    differences: dict[str, int]  # by kind; kinds without any are there, too
    repaired: dict[str, int] = field(default_factory=dict)  # by kind, where it was asked for
    report: str | None = None  # folder; None: there was no difference
    compacted: dict[str, int] = field(default_factory=dict)  # of compacted queues: clients, by kind of difference
    compacted_repaired: dict[str, int] = field(default_factory=dict)  # the same, where it was asked for

    @property
    def agree(self) -> bool:
        """Whether nothing differs that was not repaired; an overdue entry is no difference."""
        kinds = (kind for kind in Difference if kind is not Difference.OVERDUE)
        entries = all(self.differences.get(kind, 0) <= self.repaired.get(kind, 0) for kind in kinds)
        return entries and all(count <= self.compacted_repaired.get(kind, 0) for kind, count in self.compacted.items())

    def to_json(self) -> str:
        """One line, for logs and for whoever started the job."""
        return json.dumps(asdict(self) | {"agree": self.agree})


def verify(spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, repair: bool = False) -> Verified:
    """Compare, report to `<reports>/queues/<instant>/`, and with `repair` make good what either side is sure of.

    Raises:
        Retryable: with `repair`, another process that compares lake and queues is at work.
        redis.RedisError: Redis is away or refuses.
    """
    ensure_tables(catalog)
    comparison = _Comparison(spark, catalog, settings, now)
    found = comparison.differences().persist()
    try:
        counted = {row["difference"]: row["count"] for row in found.groupBy("difference").count().collect()}
        in_queues, too_young = comparison.totals()
        report = _report(found, settings, now) if counted else None
        repaired = repair_queues(found, settings, now) if repair and counted else {}
        compacted = compare_queues(spark, settings, comparison.base, now=now, repair=repair)
    finally:
        found.unpersist()
        comparison.close()
    with connect(settings.redis) as redis:
        loaded = Loader(redis, Policy.of(settings)).is_loaded()
    result = Verified(
        loaded, in_queues, too_young, {d.value: counted.get(d, 0) for d in Difference}, repaired, report, *compacted
    )
    log.info("queues are compared with the lake", agree=result.agree, **asdict(result))
    return result


class _Comparison:
    """The lake at one moment, the queues after it, and where they differ."""

    def __init__(self, spark: SparkSession, catalog: Catalog, settings: Settings, now: datetime) -> None:
        self._spark, self._catalog, self._settings = spark, catalog, settings
        self._since = now - timedelta(days=settings.retention_days)
        segments = catalog.load_table(SEGMENTS.identifier)
        self._base = main_snapshots(catalog, segments)
        self._newest = newest_seqs(catalog, self._base[SEGMENTS.name])
        rows = int(catalog.load_table(IDS.identifier).snapshot_by_id(self._base[IDS.name]).summary["total-records"] or 0)  # type: ignore[index,union-attr]  # main has it
        self._parts = max(spark.sparkContext.defaultParallelism, -(-rows // ROWS_A_PART))
        walked = spark.range(0, 1, 1, 1).mapInArrow(walk(settings.redis), ROWS)
        # A walk may come by twice. By vehicle, as the joins need them, so that they are shuffled once.
        self._queues = walked.repartition(self._parts, "vin").dropDuplicates([*KEYS, "queue_key"]).persist()
        self._kept = [self._queues]

    @property
    def base(self) -> dict[str, int]:
        """The lake's snapshots, by table."""
        return self._base

    def close(self) -> None:
        """Let go of what was kept: Spark knows a frame by its plan, and the next comparison's would have these rows."""
        for frame in self._kept:
            frame.unpersist()

    def totals(self) -> tuple[int, int]:
        """Entries that wait in the queues, and those of them that the lake cannot know yet."""
        row = self._waiting.agg(sf.count("*").alias("all"), sf.count_if(self._is_young).alias("young")).first()
        assert row is not None  # an aggregation has one row
        return row["all"], row["young"]

    def _since_oldest(self, instant: str) -> Column:
        """Rows that can be about an entry that waits in the queues."""
        row = self._waiting.agg(sf.min("seq").alias("oldest")).first()
        return sf.col(instant) >= sf.lit(datetime_of(row["oldest"] if row is not None and row["oldest"] is not None else MAX_SEQ))

    def differences(self) -> DataFrame:
        """One row a difference, as `DIFFERENCES` says; each has been looked at once more."""
        kinds = [self._open_in_lake(), *self._waiting_otherwise(), self._disordered(), self._stray()]
        columns = [column.split()[0] for column in DIFFERENCES.split(", ")]
        first = reduce(DataFrame.unionByName, (frame.select(*columns) for frame in kinds))
        live = first.mapInArrow(recheck(self._settings.redis), DIFFERENCES).persist()
        self._kept.append(live)
        ended_since = self._current(OUTCOMES).select(*KEYS).join(sf.broadcast(live.select(*KEYS)), KEYS, "left_semi")
        is_open = sf.col("difference").isin(Difference.MISSING.value, Difference.UNRECORDED.value)
        still_open = live.where(is_open).join(ended_since, KEYS, "left_anti").select(*columns)
        return live.where(~is_open).unionByName(still_open)

    @property
    def _waiting(self) -> DataFrame:
        return self._queues.where(sf.col("queue_key").isin(QueueKey.PENDING.value, QueueKey.PARKED.value))

    @property
    def _is_young(self) -> Column:
        """Younger than everything that is ingested of the same recorder."""
        newest = sf.lit(-1)
        for node, seq in self._newest.items():
            newest = sf.when(_node("seq") == node, sf.lit(seq)).otherwise(newest)
        return sf.col("seq") > newest

    def _open_in_lake(self) -> DataFrame:
        """Pending in the lake, and missing in the queues, or remembered there as ended though nothing says so on its way here."""
        entries = self._main(IDS).where(sf.col("ts") >= sf.lit(self._since)).select(*KEYS, "request_id", "data_id")
        ended = self._main(OUTCOMES).where(sf.col("accepted_at") >= sf.lit(self._since))
        waiting = pending(entries, ended, parts=self._parts, few=False)
        held = self._queues.where(sf.col("queue_key") != QueueKey.IN_FLIGHT.value)
        known = held.select(*KEYS, (sf.col("queue_key") == QueueKey.DONE.value).alias("is_done"))
        odd = waiting.join(known.hint("shuffle_hash"), KEYS, "left").where("is_done is null or is_done")
        which = sf.when(sf.col("is_done"), Difference.UNRECORDED.value).otherwise(Difference.MISSING.value)
        odd = odd.select(*KEYS, "request_id", "data_id", sf.lit(None).cast("string").alias("outcome"), which.alias("difference"))
        self._kept.append(odd.persist())
        is_unrecorded = sf.col("difference") == Difference.UNRECORDED.value
        if not odd.where(is_unrecorded).head(1):
            return odd
        moving = on_their_way(self._spark, self._catalog, self._settings)
        if moving is None:  # then none is said to be recorded nowhere
            return odd.where(~is_unrecorded)
        return odd.where(~is_unrecorded).unionByName(odd.where(is_unrecorded).join(moving, KEYS, "left_anti"))

    def _waiting_otherwise(self) -> list[DataFrame]:
        """The entries that wait in the queues and have ended, are unknown to the lake, or are overdue."""
        waiting = self._waiting.where(~self._is_young).select(*KEYS)
        ids = self._main(IDS).where(self._since_oldest("ts"))
        known = ids.select(*KEYS, "ts", "request_id", "data_id").repartition(self._parts, "vin")
        outcomes = self._main(OUTCOMES).where(self._since_oldest("accepted_at"))
        ended = outcomes.select(*KEYS, "outcome").repartition(self._parts, "vin")
        both = waiting.join(known.hint("shuffle_hash"), KEYS, "left").join(ended.hint("shuffle_hash"), KEYS, "left")
        odd = both.where(sf.col("outcome").isNotNull() | sf.col("ts").isNull() | (sf.col("ts") < sf.lit(self._since)))
        is_ended, is_extra = sf.col("outcome").isNotNull(), sf.col("ts").isNull() & sf.col("outcome").isNull()
        which = (
            sf.when(is_ended, Difference.ENDED.value).when(is_extra, Difference.EXTRA.value).otherwise(Difference.OVERDUE.value)
        )
        return [odd.withColumn("difference", which)]

    def _disordered(self) -> DataFrame:
        return _kind(_bare(self._queues.where("disordered")), Difference.DISORDERED)

    def _stray(self) -> DataFrame:
        flying = self._queues.where(sf.col("queue_key") == QueueKey.IN_FLIGHT.value)
        queued = self._queues.where(sf.col("queue_key") == QueueKey.PENDING.value).select(*KEYS)
        return _kind(_bare(flying.join(queued, KEYS, "left_anti")), Difference.STRAY)

    def _main(self, table: Table) -> DataFrame:
        name = f"{self._settings.catalog_name}.{table.identifier}"
        return self._spark.read.option("versionAsOf", self._base[table.name]).table(name)

    def _current(self, table: Table) -> DataFrame:
        return self._spark.table(f"{self._settings.catalog_name}.{table.identifier}")


def _node(seq: str) -> Column:
    return sf.shiftright(sf.col(seq), COUNTER_BITS).bitwiseAND(MAX_NODE)


def _bare(rows: DataFrame) -> DataFrame:
    nothing = sf.lit(None).cast("string")
    return rows.select(*KEYS, nothing.alias("request_id"), nothing.alias("data_id"), nothing.alias("outcome"))


def _kind(rows: DataFrame, difference: Difference) -> DataFrame:
    return rows.withColumn("difference", sf.lit(difference.value))


def _report(found: DataFrame, settings: Settings, now: datetime) -> str:
    reports, folder, content = open_reports(settings), f"{QUEUES}/{now:%Y%m%dT%H%M%S}", io.BytesIO()
    pq.write_table(found.orderBy("difference", "vin", "seq").limit(MOST_REPORTED).toArrow(), content)
    reports.write(f"{folder}/differences.parquet", content.getvalue())
    return reports.address(folder)
