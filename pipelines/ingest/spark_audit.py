"""The audit on Spark: the rows that a run adds, if they are many, and the look-ups of its rules."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from manifold.contracts.tables import DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from pipelines.ingest.arrow_audit import Lookup, days_of
from pipelines.ingest.payload_days import DAY_OF, is_index_whole, spans_of
from pipelines.ingest.publish import PinnedSnapshot
from pipelines.ingest.run import Run
from pipelines.spark.needed import NeedsSpark

# A file packs ten rows into the bytes of one, so the usual 128 MiB are all that a run has written, and one task would judge it.
SMALL_SPLITS = {"split-size": str(8 << 20), "file-open-cost": str(1 << 20)}
# In which rules look values up.
REFERENCES = {table.name: table for table in (DATA, META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, SEGMENTS, XRAY_RAW)}
BOUNDS = ("seq", "captured_at")  # columns whose least and greatest value leave files out
Added = Mapping[str, DataFrame | pa.Table]  # by table


def added(run: Run, spark: SparkSession, pinned: PinnedSnapshot) -> DataFrame:
    """The rows that the run's snapshot adds; of a merged table, those that it leaves otherwise than they were."""
    table, snapshot_id = pinned.table, pinned.snapshot_id
    snapshot = run.catalog.load_table(table.identifier).snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    name, before = f"{run.settings.catalog_name}.{table.identifier}", snapshot.parent_snapshot_id
    if table is META:
        after = spark.read.option("versionAsOf", snapshot_id).table(name)
        # Kept until all rules are judged: several ask for it, and each time two versions of the index would be compared.
        return after.exceptAll(spark.read.option("versionAsOf", str(before)).table(name)).persist()
    between = {"start-snapshot-id": str(before), "end-snapshot-id": str(snapshot_id)}
    return spark.read.options(**between, **SMALL_SPLITS).table(name)


class ReferenceTables(Mapping[str, DataFrame]):
    """By name, the tables in which rules look values up, as they will be when the run counts; made when they are asked for.

    Of the ledger there are only rows that can be about the run's segments: those of their days, and of none. Of the payloads only
    those of the days that can hold what the run has seen, and of none. Of signals only those of the instants of the run's.
    """

    def __init__(self, run: Run, spark: SparkSession, written: Sequence[PinnedSnapshot], added: Added) -> None:
        self._run, self._spark, self._added = run, spark, added
        self._versions = {pinned.table.name: pinned.snapshot_id for pinned in written}
        self._made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._made:
            self._made[name] = self._narrowed(name, self._whole(REFERENCES[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(REFERENCES)

    def __len__(self) -> int:
        return len(REFERENCES)

    def _whole(self, table: Table) -> DataFrame:
        main = self._run.catalog.load_table(table.identifier).metadata.current_snapshot_id
        version = self._versions.get(table.name, main)
        return self._spark.read.option("versionAsOf", str(version)).table(f"{self._run.settings.catalog_name}.{table.identifier}")

    def _narrowed(self, name: str, whole: DataFrame) -> DataFrame:
        if name == SEGMENTS.name:
            return whole.where(_of_none_or_between("began_at", _bounds(self._added[name], "began_at")))
        if name == DATA.name and is_index_whole(self._run.catalog, self._versions):
            return whole.where(self._near_payloads())
        if name == XRAY_RAW.name and name in self._added:
            # Literals, because Iceberg leaves files out by them.
            return whole.where(sf.col("captured_at").between(*map(sf.lit, _bounds(self._added[name], "captured_at"))))
        return whole

    def _near_payloads(self) -> Column:
        """`payload_days.rows_near` in Spark."""
        spans = spans_of(_days(self._added.get(META.name), "stored_at"), _days(self._added.get(DATA.name), DAY_OF))
        near = sf.lit(True) if spans is None else sf.col(DAY_OF).isNull()
        for first, last in spans or ():
            near = near | sf.col(DAY_OF).between(sf.lit(first), sf.lit(last))
        return near


def or_on_spark(find: Lookup, wholes: ReferenceTables, table: str) -> Lookup:
    """A look-up of rows in memory that asks Spark where too many rows would have to be looked through."""

    def found(keys: pa.Table) -> pa.Table:
        try:
            return find(keys)
        except NeedsSpark:
            whole, columns = wholes[table], keys.column_names
            for column in BOUNDS:
                if column in columns:
                    whole = whole.where(sf.col(column).between(*map(sf.lit, _bounds(keys, column))))
            asked = sf.broadcast(whole.sparkSession.createDataFrame(keys))
            return whole.select(*columns).join(asked, columns, "left_semi").toArrow()

    return found


def _of_none_or_between(column: str, bounds: tuple[object, object]) -> Column:
    of_none = sf.col(column).isNull()
    return of_none if bounds[0] is None else of_none | sf.col(column).between(*map(sf.lit, bounds))


def _bounds(rows: DataFrame | pa.Table, column: str) -> tuple[object, object]:
    """The least and the greatest value; two of None where there is none."""
    if isinstance(rows, DataFrame):
        first, last = rows.agg(sf.min(column), sf.max(column)).collect()[0]
        return first, last
    found = pc.min_max(rows[column]).as_py()
    return found["min"], found["max"]


def _days(rows: DataFrame | pa.Table | None, column: str) -> list[date | None]:
    if isinstance(rows, DataFrame):
        return [row["day"] for row in rows.select(sf.to_date(column).alias("day")).distinct().collect()]
    return days_of(rows, column)
