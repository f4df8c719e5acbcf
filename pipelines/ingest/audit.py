"""Audits a run once it is written, with Great Expectations. The stage `audit` reads the verdict: `audit_result`."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from functools import partial, reduce

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from expectations import Audit, audit
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import CAMPAIGNS, DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from manifold.lake.reports import open_reports
from pipelines.ingest.audit_result import append_audit_result
from pipelines.ingest.branches import RUN_ID, head_of, properties_of
from pipelines.ingest.payload_days import DAY_OF, is_index_whole, spans_of
from pipelines.ingest.publish import PinnedSnapshot, is_committed, pins_in
from pipelines.ingest.run import Run

# Files are compressed tenfold, so one split of the usual 128 MiB holds all that a run has written, and one task would audit it.
SMALL_SPLITS = {"split-size": str(8 << 20), "file-open-cost": str(1 << 20)}
# Tables in which rules look values up.
REFERENCES = {table.name: table for table in (DATA, META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, CAMPAIGNS, SEGMENTS, XRAY_RAW)}

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. It stays on its branches, and main is unchanged."""

    def __init__(self, result: Audit) -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: Run) -> Audit | None:
    """Audit what the run has written; None if it wrote nothing or is already published.

    Raises:
        AuditFailed: the run must not be published; the message names the broken rules and some of the rows.
    """
    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or properties_of(head).get(RUN_ID) != run_id or is_committed(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("nothing to audit", run_id=run_id)
        return None
    pins = (*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id))
    counts = {pinned.table.name: count for pinned in pins if (count := added_count(catalog, pinned))}
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
        keep_results=partial(append_audit_result, catalog, head),
    )
    for warning in result.warnings:
        log.warning("run breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run audited", run_id=run_id, passed=result.passed, warnings=len(result.warnings), report=str(result.report))
    return result


def added_count(catalog: Catalog, pinned: PinnedSnapshot) -> int:
    """The number of rows that the run's snapshot adds to the table, by its summary."""
    snapshot = catalog.load_table(pinned.table.identifier).snapshot_by_id(pinned.snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    return int(properties_of(snapshot).get("added-records", "0"))


def added(run: Run, pinned: PinnedSnapshot) -> DataFrame:
    """The rows that the run's snapshot adds."""
    table, snapshot_id = pinned.table, pinned.snapshot_id
    snapshot = run.catalog.load_table(table.identifier).snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    between = {"start-snapshot-id": str(snapshot.parent_snapshot_id), "end-snapshot-id": str(snapshot_id)}
    return run.spark.read.options(**between, **SMALL_SPLITS).table(f"{run.settings.catalog_name}.{table.identifier}")


class ReferenceTables(Mapping[str, DataFrame]):
    """Tables in which rules look values up, by name, as they will be once the run is committed; built on first use.

    They are narrowed to rows that the run can refer to: of the ledger, the days of the run's segments; of the payloads, the days
    that can hold what the run has seen; of signals, the run's time range. Rows without a day are always included.
    """

    def __init__(self, run: Run, written: Sequence[PinnedSnapshot], added_rows: Mapping[str, DataFrame]) -> None:
        self._run, self._spark, self._added = run, run.spark, added_rows
        self._versions = {pinned.table.name: pinned.snapshot_id for pinned in written}
        self._made: dict[str, DataFrame] = {}

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._made:
            self._made[name] = self._narrowed(name, self._read_table(REFERENCES[name]))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(REFERENCES)

    def __len__(self) -> int:
        return len(REFERENCES)

    def _read_table(self, table: Table) -> DataFrame:
        main = self._run.catalog.load_table(table.identifier).metadata.current_snapshot_id
        version = self._versions.get(table.name, main)
        return self._spark.read.option("versionAsOf", str(version)).table(f"{self._run.settings.catalog_name}.{table.identifier}")

    def _narrowed(self, name: str, whole: DataFrame) -> DataFrame:
        if name == SEGMENTS.name:
            return whole.where(_of_none_or_between("began_at", _bounds(self._added[name], "began_at")))
        if name == DATA.name and self._is_index_whole():
            return whole.where(self._near_payloads())
        if name == XRAY_RAW.name and name in self._added:
            # Literals, so that Iceberg can prune files.
            return whole.where(sf.col("captured_at").between(*map(sf.lit, _bounds(self._added[name], "captured_at"))))
        return whole

    def _is_index_whole(self) -> bool:
        names = self._read_table(META).select("data_id").distinct().count()
        return is_index_whole(self._run.catalog, self._versions.get(DATA.name), names)

    def _near_payloads(self) -> Column:
        """Condition for rows of the days that can hold what the run has seen, and for rows without a day."""
        dated = {META.name: "stored_at", DATA.name: DAY_OF}
        days = _days([self._added[table].select(column) for table, column in dated.items() if table in self._added])
        near = sf.col(DAY_OF).isNull()
        for first, last in spans_of(days):
            near = near | sf.col(DAY_OF).between(sf.lit(first), sf.lit(last))
        return near


def _of_none_or_between(column: str, bounds: tuple[object, object]) -> Column:
    of_none = sf.col(column).isNull()
    return of_none if bounds[0] is None else of_none | sf.col(column).between(*map(sf.lit, bounds))


def _bounds(rows: DataFrame, column: str) -> tuple[object, object]:
    """The minimum and maximum of a column; (None, None) if it has no values."""
    first, last = rows.agg(sf.min(column), sf.max(column)).collect()[0]
    return first, last


def _days(instants: Sequence[DataFrame]) -> list[date]:
    """The days in these frames of one column each; nulls are left out."""
    if not instants:
        return []
    days = reduce(DataFrame.union, instants).toDF("at").select(sf.to_date("at").alias("day")).distinct().collect()
    return [row["day"] for row in days if row["day"] is not None]
