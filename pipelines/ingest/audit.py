"""The audit of a run, between writing and publishing: `python -m pipelines audit --run-id …`."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from adapters.reports import open_reports
from contracts.errors import Permanent
from contracts.tables import DATA, ECQ_PAYLOAD, ECQ_SEQNO, IDS, META, SEGMENTS, XRAY_RAW, Table
from expectations import Audit, NotInArrow, audit
from pipelines.ingest.arrow_audit import ALONE, BESIDE_SPARK, NOTHING, Bounds, days_of, lookups, rows_of
from pipelines.ingest.branches import COUNTED, RUN_ID, head_of, properties_of
from pipelines.ingest.payload_days import DAY_OF, is_index_whole, spans_of
from pipelines.ingest.publish import PinnedSnapshot, counts, pins_in
from pipelines.ingest.run import Run
from pipelines.ingest.verdict import keep_verdict
from pipelines.populate.snapshot_range import SnapshotRange
from pipelines.spark.needed import NeedsSpark

# A file packs ten rows into the bytes of one, so the usual 128 MiB are all that a run has written, and one task would judge it.
SMALL_SPLITS = {"split-size": str(8 << 20), "file-open-cost": str(1 << 20)}
TOGETHER = (DATA, META)  # the days of both tell where in the payloads something is looked for
REFERENCES = (DATA, META, IDS, ECQ_PAYLOAD, ECQ_SEQNO, SEGMENTS)  # the tables that rules look values up in

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. It stays on its branches, and main is as it was."""

    def __init__(self, result: Audit) -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: Run) -> Audit | None:
    """Judge what the run has written; None if it has written nothing, or counts already.

    Raises:
        AuditFailed: it must not be published; the message names the rules and some of the rows.
        NeedsSpark: the run has none, and its rows are too many, or a rule has no other form.
    """
    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or properties_of(head).get(RUN_ID) != run_id or counts(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("run has nothing to judge", run_id=run_id)
        return None
    written = [*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id)]
    judge = partial(
        audit,
        run_id=run_id,
        as_of=run.now,
        reports=open_reports(settings),
        keep=settings.report_max,
        data_wait=timedelta(seconds=settings.data_wait_seconds),
        counted=json.loads(properties_of(head).get(COUNTED, "{}")),
        keep_results=partial(keep_verdict, catalog, head),
    )
    try:
        result = _judged(judge, run, head, written, ALONE if run.spark is None else BESIDE_SPARK)
    except (NeedsSpark, NotInArrow) as exc:
        if run.spark is None:
            raise NeedsSpark(str(exc)) from exc
        result = _judged(judge, run, head, written, NOTHING)
    for warning in result.warnings:
        log.warning("run breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run is judged", run_id=run_id, passed=result.passed, warnings=len(result.warnings), report=str(result.report))
    return result


def _judged(judge: Callable[..., Audit], run: Run, head: Snapshot, written: Sequence[PinnedSnapshot], bounds: Bounds) -> Audit:
    """The judgement of what the run adds: of tables within the bounds in this process, of the others on Spark.

    Raises:
        NeedsSpark: the run has none, or what rows in memory refer to is too much; nothing has been written.
        NotInArrow: a rule has no other form than Spark's; nothing has been written.
    """
    few: dict[str, pa.Table] = {}
    many: list[PinnedSnapshot] = []
    for pinned in written:
        try:
            few[pinned.table.name] = rows_of(run.catalog, pinned, bounds)
        except NeedsSpark:
            if run.spark is None:
                raise
            many.append(pinned)
    if any(pinned.table in TOGETHER for pinned in many):
        many += [pinned for pinned in written if pinned.table in TOGETHER and few.pop(pinned.table.name, None) is not None]
    found = lookups(run.catalog, written, few, bounds)
    if run.spark is None or not many:
        return judge(few, references={}, lookups=found)
    frames = {pinned.table.name: _added(run, run.spark, pinned) for pinned in many}
    try:
        # Rows in memory first: what they refer to may turn out to be too much.
        return judge(few | frames, references=_references(run, run.spark, head, written, few | frames), lookups=found)
    finally:
        if META.name in frames:
            frames[META.name].unpersist()


def _references(
    run: Run, spark: SparkSession, head: Snapshot, written: Sequence[PinnedSnapshot], added: Mapping[str, DataFrame | pa.Table]
) -> dict[str, DataFrame]:
    """The tables in which rules about rows in Spark look values up."""
    versions = {pinned.table.name: pinned.snapshot_id for pinned in written}
    on_spark = {name for name, rows in added.items() if isinstance(rows, DataFrame)}
    references = {table.name: _whole(run, spark, table, versions) for table in REFERENCES}
    if SEGMENTS.name in on_spark:
        references[SEGMENTS.name] = references[SEGMENTS.name].where(_same_days(run.catalog, head))
    if on_spark & {META.name, DATA.name} and is_index_whole(run.catalog, versions):
        references[DATA.name] = references[DATA.name].where(_near_payloads(added))
    if XRAY_RAW.name in on_spark:
        references[XRAY_RAW.name] = _captured_between(_whole(run, spark, XRAY_RAW, versions), added[XRAY_RAW.name])
    return references


def _captured_between(whole: DataFrame, added: DataFrame) -> DataFrame:
    """Rows of signals that can be about the same ones as those of the run: literals, because Iceberg leaves files out by them."""
    first, last = added.agg(sf.min("captured_at"), sf.max("captured_at")).collect()[0]
    return whole.where(sf.col("captured_at").between(sf.lit(first), sf.lit(last)))


def _near_payloads(added: Mapping[str, DataFrame | pa.Table]) -> Column:
    """The payloads of the days that can hold what the run has seen, and those of no day. `payload_days.rows_near` in Spark."""
    spans = spans_of(_days(added, META, "stored_at"), _days(added, DATA, DAY_OF))
    if spans is None:
        return sf.lit(True)  # no condition
    near = sf.col(DAY_OF).isNull()
    for first, last in spans:
        near = near | sf.col(DAY_OF).between(sf.lit(first), sf.lit(last))
    return near


def _days(added: Mapping[str, DataFrame | pa.Table], table: Table, column: str) -> list[date | None]:
    """The days in a column of the rows that the run adds."""
    rows = added.get(table.name)
    if isinstance(rows, DataFrame):
        return [row["day"] for row in rows.select(sf.to_date(column).alias("day")).distinct().collect()]
    return days_of(rows, column)


def _same_days(catalog: Catalog, head: Snapshot) -> Column:
    """Ledger rows that can be about the segments of a run: of their days, or of none."""
    assert head.parent_snapshot_id is not None  # a run begins from main
    added = SnapshotRange(SEGMENTS, head.parent_snapshot_id, head.snapshot_id, 1)
    days = pc.min_max(added.read(catalog, AlwaysTrue(), ("began_at",))["began_at"]).as_py()
    of_none = sf.col("began_at").isNull()
    return of_none if days["min"] is None else of_none | sf.col("began_at").between(sf.lit(days["min"]), sf.lit(days["max"]))


def _added(run: Run, spark: SparkSession, pinned: PinnedSnapshot) -> DataFrame:
    """The rows that the run's snapshot adds; of a merged table, those that it leaves otherwise than they were."""
    table, snapshot_id = pinned.table, pinned.snapshot_id
    snapshot = run.catalog.load_table(table.identifier).snapshot_by_id(snapshot_id)
    assert snapshot is not None  # it is the head of a branch, or pinned by one
    name, before = f"{run.settings.catalog_name}.{table.identifier}", snapshot.parent_snapshot_id
    if table is META:
        after = spark.read.option("versionAsOf", snapshot_id).table(name)
        # Kept until all rules are judged: several ask for it, and each time two versions of the index would be compared.
        return after.exceptAll(spark.read.option("versionAsOf", str(before)).table(name)).persist()
    added = {"start-snapshot-id": str(before), "end-snapshot-id": str(snapshot_id)}
    return spark.read.options(**added, **SMALL_SPLITS).table(name)


def _whole(run: Run, spark: SparkSession, table: Table, versions: Mapping[str, int]) -> DataFrame:
    """The table as it will be when the run counts."""
    main = run.catalog.load_table(table.identifier).metadata.current_snapshot_id
    version = versions.get(table.name, main)
    return spark.read.option("versionAsOf", str(version)).table(f"{run.settings.catalog_name}.{table.identifier}")
