"""Audits a written run with Great Expectations. The stage `audit` reads the result with the module `audit_result`."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import reduce

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from expectations import Audit, audit, results_of
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import CAMPAIGNS, DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from manifold.lake.reports import open_reports
from pipelines.ingest.audit_result import append_audit_result
from pipelines.ingest.branches import RUN_ID, head_of, properties_of
from pipelines.ingest.payload_days import DAY_OF, is_index_complete, spans_of
from pipelines.ingest.publish import PinnedSnapshot, is_committed, pins_in
from pipelines.ingest.run import Run

# Read options. With the default splits of 128 MiB, all rows of a run would usually be one split, audited by one task, because
# files are compressed tenfold.
SMALL_SPLITS = {"split-size": str(8 << 20), "file-open-cost": str(1 << 20)}
# Tables in which rules look up values, by name.
REFERENCES = {table.name: table for table in (DATA, META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, CAMPAIGNS, SEGMENTS, XRAY_RAW)}

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. The run's rows stay on its branches, and main is unchanged."""

    def __init__(self, result: Audit) -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: Run) -> Audit | None:
    """Audit the rows that the run has written; return None if it wrote none or is already published.

    Raises:
        AuditFailed: the run must not be published; the message names the broken rules and some of the rows.
    """
    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    is_written = head is not None and properties_of(head).get(RUN_ID) == run_id
    if head is None or not is_written or is_committed(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("nothing to audit", run_id=run_id)
        return None
    pins = (*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id))
    all_counts = {pinned.table.name: added_count(catalog, pinned) for pinned in pins}
    counts = {name: count for name, count in all_counts.items() if count}
    written = [pinned for pinned in pins if pinned.table.name in counts]
    frames = {pinned.table.name: added(run, pinned) for pinned in written}
    result = audit(
        frames,
        run_id=run_id,
        as_of=run.now,
        reports=open_reports(settings),
        keep=settings.report_max,
        references=ReferenceTables(run, written, frames),
        data_wait=timedelta(seconds=settings.data_wait_seconds),
        counts=counts,
    )
    append_audit_result(catalog, head, results_of(result, run.now))
    for warning in result.warnings:
        log.warning("run breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run audited", run_id=run_id, passed=result.passed, warnings=len(result.warnings), report=str(result.report))
    return result


def added_count(catalog: Catalog, pinned: PinnedSnapshot) -> int:
    """The number of rows that the run's snapshot adds to the table, according to the snapshot's summary."""
    snapshot = catalog.load_table(pinned.table.identifier).snapshot_by_id(pinned.snapshot_id)
    assert snapshot is not None  # the snapshot is the head of a branch, or pinned by the head of a branch
    return int(properties_of(snapshot).get("added-records", "0"))


def added(run: Run, pinned: PinnedSnapshot) -> DataFrame:
    """The rows that the run's snapshot adds to the table."""
    table, snapshot_id = pinned.table, pinned.snapshot_id
    snapshot = run.catalog.load_table(table.identifier).snapshot_by_id(snapshot_id)
    assert snapshot is not None  # the snapshot is the head of a branch, or pinned by the head of a branch
    snapshot_range = {"start-snapshot-id": str(snapshot.parent_snapshot_id), "end-snapshot-id": str(snapshot_id)}
    return run.spark.read.options(**snapshot_range, **SMALL_SPLITS).table(f"{run.settings.catalog_name}.{table.identifier}")


class ReferenceTables(Mapping[str, DataFrame]):
    """Tables in which rules look up values, by name. Each frame is built on first use.

    A frame shows the table as it will be once the run is committed. Only rows to which the run can refer are included: in the
    ledger, those of the days on which the run's segments began; in the payloads, those of the days that can hold the run's data
    ids; in the signals, those of the run's time range. Rows without a day are always included.
    """

    def __init__(self, run: Run, written: Sequence[PinnedSnapshot], added_rows: Mapping[str, DataFrame]) -> None:
        self._run = run
        self._added = added_rows
        self._versions = {pinned.table.name: pinned.snapshot_id for pinned in written}
        self._frames: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._frames:
            self._frames[name] = self._narrow(name, self._read_table(REFERENCES[name]))
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter(REFERENCES)

    def __len__(self) -> int:
        return len(REFERENCES)

    def _read_table(self, table: Table) -> DataFrame:
        """All rows of the table at the run's snapshot or, if the run does not write the table, at main."""
        main = self._run.catalog.load_table(table.identifier).metadata.current_snapshot_id
        version = self._versions.get(table.name, main)
        reader = self._run.spark.read.option("versionAsOf", str(version))
        return reader.table(f"{self._run.settings.catalog_name}.{table.identifier}")

    def _narrow(self, name: str, rows: DataFrame) -> DataFrame:
        """Keep the rows of the table `name` to which the run can refer."""
        if name == SEGMENTS.name:
            first, last = _bounds(self._added[name], "began_at")
            is_dayless = sf.col("began_at").isNull()
            if first is None:
                return rows.where(is_dayless)
            return rows.where(is_dayless | sf.col("began_at").between(sf.lit(first), sf.lit(last)))
        if name == DATA.name and self._is_index_complete():
            return rows.where(self._has_possible_payload_day())
        if name == XRAY_RAW.name and name in self._added:
            first, last = _bounds(self._added[name], "captured_at")
            # With literal bounds, Iceberg can prune files.
            return rows.where(sf.col("captured_at").between(sf.lit(first), sf.lit(last)))
        return rows

    def _is_index_complete(self) -> bool:
        data_ids = self._read_table(META).select("data_id").distinct().count()
        return is_index_complete(self._run.catalog, self._versions.get(DATA.name), data_ids)

    def _has_possible_payload_day(self) -> Column:
        """Condition: the row's day can hold a payload of the run's data ids, or the row has no day."""
        day_columns = {META.name: "stored_at", DATA.name: DAY_OF}
        instants = [self._added[table].select(column) for table, column in day_columns.items() if table in self._added]
        condition = sf.col(DAY_OF).isNull()
        for first, last in spans_of(_distinct_days(instants)):
            condition = condition | sf.col(DAY_OF).between(sf.lit(first), sf.lit(last))
        return condition


def _bounds(rows: DataFrame, column: str) -> tuple[object, object]:
    """The minimum and maximum of a column; (None, None) if it has no values."""
    first, last = rows.agg(sf.min(column), sf.max(column)).collect()[0]
    return first, last


def _distinct_days(instants: Sequence[DataFrame]) -> list[date]:
    """The distinct days of the instants in these frames, which have one column each; nulls are left out."""
    if not instants:
        return []
    days = reduce(DataFrame.union, instants).toDF("at").select(sf.to_date("at").alias("day")).distinct().collect()
    return [row["day"] for row in days if row["day"] is not None]
