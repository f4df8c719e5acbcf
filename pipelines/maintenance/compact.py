"""Compacts tables into fewer, larger and sorted files: `python -m pipelines compact`. No query result changes.

Two steps remove rows that no query result depends on: first, unneeded rows of compacted queues are removed (`ecq_compact`); and
before `sdv_fanout_meta` is sorted, all but one row of each payload (`sightings_compact`).

Compaction may run beside ingest. A rewrite replaces files by others with the same rows, so it does not conflict with concurrent
writes, and publication rebases earlier writes on top of it (see `pipelines.ingest.publish`). Only `ingested_segments` is skipped
while a run is open, because a rewrite of the ledger would force that run to start again. After a kill, the next compaction
continues. The lease excludes other jobs that rewrite tables; a run that such a job has committed and not finished is finished
first.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import Row, SparkSession

from manifold.contracts.tables import (
    CAMPAIGN_ANSWERS,
    CAMPAIGN_EVENTS,
    CAMPAIGN_TARGETS,
    ECQ_INDEX,
    ECQ_STATE,
    IDS,
    META,
    OUTCOMES,
    SEGMENTS,
    XRAY_PROCESSED,
    XRAY_RAW,
    XRAY_STATUS,
    Table,
)
from manifold.lake.catalog import ensure_tables, tables_of
from manifold.settings import Settings
from pipelines.ingest.branches import BEGAN
from pipelines.ingest.lease import check_lease
from pipelines.ingest.publish import finish_committed_runs
from pipelines.maintenance.compact_discover import Shape, discover
from pipelines.maintenance.compact_plan import CompactionPolicy, Group, Work, work_of
from pipelines.maintenance.ecq_compact import QueuesCompacted, compact_queues, has_queue_work, record_compacted
from pipelines.maintenance.sightings_compact import merge_sightings
from pipelines.maintenance.sorting import NULLS, sort_order_id

SORTED_BY: Mapping[str, Sequence[str]] = {
    IDS.name: ("vin", "seq"),
    META.name: ("data_id",),
    OUTCOMES.name: ("vin", "seq"),
    ECQ_INDEX.name: ("client_id", "seq"),
    ECQ_STATE.name: ("client_id", "acked_seq"),
    CAMPAIGN_EVENTS.name: ("campaign", "seq"),
    CAMPAIGN_TARGETS.name: ("vin", "seq"),
    CAMPAIGN_ANSWERS.name: ("vin", "seq"),
    XRAY_RAW.name: ("device_id", "seq"),
    XRAY_PROCESSED.name: ("device_id", "seq"),
    XRAY_STATUS.name: ("device_id", "seq"),
}
MAX_DAYS_PER_CALL = 31
MAX_COMMITS_PER_CALL = 10  # several, so that a kill or a conflict loses a tenth of the work

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TableResult:
    """Result of compacting one table."""

    before: Shape
    after: Shape
    packed_days: int = 0
    sorted_days: int = 0
    folded_rows: int = 0  # rows removed because the rows of a data_id were merged into one; only of `sdv_fanout_meta`
    rewritten_files: int = 0
    failed_files: int = 0  # another commit was in the way; rewritten next time
    manifests_rewritten: bool = False
    seconds: float = 0.0
    left_alone: str | None = None  # why the table was skipped

    @property
    def event(self) -> str:
        """What happened, as the event of a log line."""
        if self.left_alone is not None:
            return "table left alone"
        is_changed = self.rewritten_files or self.manifests_rewritten or self.folded_rows
        return "table compacted" if is_changed else "table examined"

    def write_to_log(self, table: Table) -> None:
        """Write a log line about the table."""
        log.info(
            self.event,
            table=table.name,
            files_before=asdict(self.before),
            files_after=asdict(self.after),
            packed_days=self.packed_days,
            sorted_days=self.sorted_days,
            merged_rows_removed=self.folded_rows,
            rewritten_files=self.rewritten_files,
            conflicting_files=self.failed_files,
            manifests_rewritten=self.manifests_rewritten,
            seconds=self.seconds,
            reason=self.left_alone,
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """Result of a compaction, by table."""

    tables: dict[str, TableResult] = field(default_factory=dict)
    queues: QueuesCompacted = field(default_factory=QueuesCompacted)

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def compact(spark: SparkSession | None, catalog: Catalog, settings: Settings, *, now: datetime) -> Compacted:
    """Rewrite files where the settings `compact_…` make a rewrite worthwhile. Idempotent.

    `now` decides which days are old enough to sort (`compact_settled_days`). If `spark` is None, nothing is rewritten, and the
    result only describes each table's files.
    """
    ensure_tables(catalog)
    policy = compaction_policy(settings)
    queues = QueuesCompacted()
    are_queues_compacted = False
    if spark is not None:
        finish_committed_runs(catalog)
        if has_queue_work(catalog):
            queues = compact_queues(spark, catalog, settings, now=now)
            are_queues_compacted = True
    result = Compacted(queues=queues)
    for table in tables_of(catalog):
        merge_rows = None
        if spark is not None and table is META:
            merge_rows = partial(merge_sightings, spark, catalog, settings, now=now)
        compaction = _Compaction(spark, catalog, f"{settings.catalog_name}.{table.identifier}", table, policy)
        table_result = compaction.run(now.date(), merge_rows)
        result.tables[table.name] = table_result
        table_result.write_to_log(table)
    if are_queues_compacted:
        record_compacted(catalog)  # last, so that it records the snapshots of the rewrites above
    return result


def has_work(catalog: Catalog, settings: Settings, *, now: datetime) -> bool:
    """Whether any rewrite is worthwhile. If none is, Spark need not be started."""
    ensure_tables(catalog)
    policy = compaction_policy(settings)
    if has_queue_work(catalog):
        return True
    for table in tables_of(catalog):
        compaction = _Compaction(None, catalog, f"{settings.catalog_name}.{table.identifier}", table, policy)
        if compaction.has_work(now.date()):
            return True
    return False


def compaction_policy(settings: Settings) -> CompactionPolicy:
    """The compaction thresholds in the settings."""
    return CompactionPolicy(
        settings.compact_target_bytes, settings.compact_min_files, settings.compact_max_manifests, settings.compact_settled_days
    )


class _Compaction:
    """The compaction of one table."""

    def __init__(self, spark: SparkSession | None, catalog: Catalog, name: str, table: Table, policy: CompactionPolicy) -> None:
        self._spark, self._catalog, self._name, self._table, self._policy = spark, catalog, name, table, policy
        self._sort_columns = SORTED_BY.get(table.name)  # None: the table is not sorted
        self._order_id = sort_order_id(catalog, table, self._sort_columns) if self._sort_columns else 0  # 0: no order

    def has_work(self, today: date) -> bool:
        """Whether any rewrite of this table is worthwhile."""
        groups, shape = self._discover()
        if self._table is SEGMENTS and self._open_run():  # `run` would leave the table alone
            return False
        work = self._plan_work(groups, today)
        has_too_many_manifests = shape.manifests > self._policy.max_manifests
        return bool(work.pack or work.cluster or shape.delete_files or has_too_many_manifests)

    def run(self, today: date, merge_rows: Callable[[], int] | None = None) -> TableResult:
        """Rewrite files where a rewrite is worthwhile.

        Before the table is sorted, `merge_rows` is called, which removes rows and returns their number.
        """
        began = time.monotonic()
        groups, before = self._discover()
        result = TableResult(before=before, after=before)
        open_run = self._open_run() if self._table is SEGMENTS else None
        if open_run:
            result.left_alone = f"run {open_run} is open"
        if self._spark is None or open_run:
            return result
        work = self._plan_work(groups, today)
        if merge_rows is not None and work.cluster:
            result.folded_rows = merge_rows()
        self._rewrite(work, result)
        if before.delete_files:
            self._apply_deletes(result)
        if result.rewritten_files:
            _, result.after = self._discover()
        if result.after.manifests > self._policy.max_manifests:
            self._call("rewrite_manifests", "use_caching => false")
            result.manifests_rewritten = True
            _, result.after = self._discover()
        result.seconds = round(time.monotonic() - began, 1)
        return result

    def _plan_work(self, groups: list[Group], today: date) -> Work:
        return work_of(groups, self._policy, today=today, can_sort=self._sort_columns is not None)

    def _discover(self) -> tuple[list[Group], Shape]:
        return discover(self._catalog, self._table, self._policy, self._order_id)

    def _open_run(self) -> str | None:
        """The branch of a run that has begun and is not published yet; None if there is none."""
        for name in self._catalog.load_table(SEGMENTS.identifier).properties:
            if name.startswith(BEGAN):
                return name.removeprefix(BEGAN)
        return None

    def _rewrite(self, work: Work, result: TableResult) -> None:
        """Pack and sort the days of `work`, and add the counts to `result`."""
        for days in _chunks(work.pack):
            self._rewrite_files(days, "strategy => 'binpack'", {"min-input-files": self._policy.min_files}, result)
        if self._sort_columns:  # otherwise `work.cluster` is empty
            sort_order = ", ".join(f"{column} ASC {NULLS}" for column in self._sort_columns)
            for days in _chunks(work.cluster):
                strategy = f"strategy => 'sort', sort_order => '{sort_order}'"
                self._rewrite_files(days, strategy, {"rewrite-all": "true"}, result)
        result.packed_days = len(work.pack)
        result.sorted_days = len(work.cluster)

    def _apply_deletes(self, result: TableResult) -> None:
        """Rewrite every data file to which a delete file refers, then drop the delete files that refer to no data file."""
        # With these limits, the size of a file and the number of files are no reason to rewrite; only delete files are.
        options = {
            "min-file-size-bytes": 0,
            "max-file-size-bytes": 1 << 62,
            "min-input-files": 1 << 30,
            "delete-file-threshold": 1,
        }
        self._rewrite_files([None], "strategy => 'binpack'", options, result)
        self._call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")

    def _rewrite_files(
        self, days: Sequence[date | None], strategy: str, options: Mapping[str, object], result: TableResult
    ) -> None:
        """Rewrite the data files of these days ([None]: of the whole table), and add the numbers of files to `result`."""
        all_options = dict(options) | {
            "target-file-size-bytes": self._policy.target_bytes,
            "partial-progress.enabled": "true",
            "partial-progress.max-commits": MAX_COMMITS_PER_CALL,
        }
        option_list = ", ".join(f"'{name}', '{value}'" for name, value in all_options.items())
        conditions = [self._day_condition(day) for day in days if day is not None]
        where = f', where => "{" OR ".join(conditions)}"' if conditions else ""
        row = self._call("rewrite_data_files", f"{strategy}, options => map({option_list}){where}")
        result.rewritten_files += row["rewritten_data_files_count"]
        result.failed_files += row["failed_data_files_count"]

    def _day_condition(self, day: date) -> str:
        """A condition in SQL for the rows of this day."""
        column = self._table.day_of
        next_day = day + timedelta(days=1)
        return f"({column} >= TIMESTAMP '{day} 00:00:00+00:00' AND {column} < TIMESTAMP '{next_day} 00:00:00+00:00')"

    def _call(self, procedure: str, arguments: str) -> Row:
        """Call an Iceberg procedure for the table; return its result, which is one row.

        Raises:
            LeaseLost: another job has taken this job's lease.
        """
        assert self._spark is not None  # without Spark, `run` returns before any rewrite
        check_lease(self._catalog)
        catalog_name = self._name.split(".")[0]
        (row,) = self._spark.sql(f"CALL {catalog_name}.system.{procedure}(table => '{self._name}', {arguments})").collect()
        return row


def _chunks(days: Sequence[date | None]) -> list[Sequence[date | None]]:
    """Split the days into chunks of at most `MAX_DAYS_PER_CALL`, each of which one call rewrites.

    If `days` has None (files without a day), the first chunk is `[None]`, which stands for the whole table.
    """
    chunks: list[Sequence[date | None]] = [[None]] if None in days else []
    known_days = [day for day in days if day is not None]
    chunks += [known_days[start : start + MAX_DAYS_PER_CALL] for start in range(0, len(known_days), MAX_DAYS_PER_CALL)]
    return chunks
