"""Reprocesses raw signals by the current rules: `python -m pipelines process_signals`. No Spark.

Each day is reprocessed by a run of its own, which replaces all processed rows of the day. The run takes effect in one commit, as
an ingest does; an ingest that began before that commit starts again. Rows are processed in batches, so a day may have any size.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import partial

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan, NotEqualTo, NotNull, Or

from manifold.archive.parsing import Processing
from manifold.contracts.signals.processing import RULES
from manifold.contracts.tables import SEGMENTS, XRAY_PROCESSED, XRAY_RAW
from manifold.lake.catalog import has_signals, where
from manifold.lake.commits import append_nothing
from manifold.lake.key_ring import require_ring
from manifold.settings import Settings
from pipelines.ingest.delete_rows import days_of
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.overwrite_days import overwrite_days
from pipelines.ingest.publish import main_snapshots
from pipelines.lineage import emits_lineage

ROW_BATCH_SIZE = 50_000
ONE_DAY = timedelta(days=1)
_RAW_COLUMNS = ("device_id", "captured_at", "content_digest", "seq", "received_at", "schema_version", "correlation_id", "payload")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Processed:
    """Days and rows that were reprocessed."""

    days: list[str] = field(default_factory=list)
    rows: int = 0
    unread: int = 0  # rows, included in `rows`, whose payload could not be opened

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


@emits_lineage("process_signals", reads=[XRAY_RAW])
def process_again(
    catalog: Catalog,
    settings: Settings,
    *,
    now: datetime,
    start: datetime | None = None,
    end: datetime | None = None,
    again: bool = False,
) -> Processed:
    """Reprocess the days that have rows processed by another version of the rules, or rows whose payload could not be opened.

    Only days that end after `start` and begin before `end` are considered; None does not limit. With `again`, reprocess each of
    these days: the setting `signals_bounds` belongs to the rules, but a change of it does not change their version. Idempotent.

    Raises:
        Overtaken: other runs kept being published first. Days reprocessed so far stay reprocessed.
        SettingsError: the key ring cannot be read. Without keys, reprocessing would empty existing rows.
        OSError: the key storage failed.
    """
    processed = Processed()
    if not has_signals(catalog):
        return processed
    require_ring(settings)
    processing = Processing.of(settings)
    for day in _days_with_signals(catalog, start, end):
        counts = until_not_overtaken()(lambda day=day: _reprocess_day(catalog, processing, day, now, always=again))
        if counts is not None:
            processed.days.append(day.isoformat())
            processed.rows += counts["rows"]
            processed.unread += counts["unread"]
            log.info(
                "signals of a day reprocessed",
                day=day.isoformat(),
                rows=counts["rows"],
                unreadable_rows=counts["unread"],
                rules_version=RULES,
            )
    return processed


def _days_with_signals(catalog: Catalog, start: datetime | None, end: datetime | None) -> list[date]:
    """The days of raw signals that end after `start` and begin before `end`, in order."""
    loaded = catalog.load_table(XRAY_RAW.identifier)
    days: set[date] = set()
    for task in loaded.scan().plan_files():
        days.update(days_of(loaded, task.file))
    if start is not None:
        days = {day for day in days if _midnight(day) + ONE_DAY > start}
    if end is not None:
        days = {day for day in days if _midnight(day) < end}
    return sorted(days)


def _reprocess_day(catalog: Catalog, processing: Processing, day: date, now: datetime, *, always: bool) -> dict[str, int] | None:
    """Reprocess one day if it is stale, or `always`.

    Return the numbers of `rows` and of `unread` rows, whose payload could not be opened; None if the day was not reprocessed.
    """
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    if not always and not _is_stale(catalog, base[XRAY_PROCESSED.name], day):
        return None
    counts = {"rows": 0, "unread": 0}
    run = MaintenanceRun(catalog, "process", base, now)

    def processed_rows() -> Iterator[pa.Table]:
        counts.update(rows=0, unread=0)  # a commit that is retried reads the rows again
        for rows in _process_batches(catalog, processing, base[XRAY_RAW.name], day):
            counts["rows"] += rows.num_rows
            counts["unread"] += rows.num_rows - rows["problem"].null_count
            yield rows

    run.change(XRAY_PROCESSED, partial(overwrite_days, catalog, XRAY_PROCESSED, [day], processed_rows))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    return counts


def _is_stale(catalog: Catalog, snapshot_id: int, day: date) -> bool:
    """Whether the day has a row processed by another version of the rules, or a row whose payload could not be opened."""
    is_stale = Or(NotEqualTo(term="rules", value=RULES), NotNull(term="problem"))
    table = catalog.load_table(XRAY_PROCESSED.identifier)
    scan = table.scan(And(_received_on(day), is_stale), ("seq",), snapshot_id=snapshot_id, limit=1)
    return bool(scan.to_arrow().num_rows)


def _process_batches(catalog: Catalog, processing: Processing, snapshot_id: int, day: date) -> Iterator[pa.Table]:
    """Process the day's raw signals; yield rows of `XRAY_PROCESSED`, which keep some columns of the raw signals."""
    schema = XRAY_PROCESSED.arrow_schema
    scan = catalog.load_table(XRAY_RAW.identifier).scan(_received_on(day), _RAW_COLUMNS, snapshot_id=snapshot_id)
    for batch in scan.to_arrow_batch_reader():
        for start in range(0, batch.num_rows, ROW_BATCH_SIZE):
            raw = batch.slice(start, ROW_BATCH_SIZE)
            processed = processing.results_of(raw["seq"].to_pylist(), raw["payload"].to_pylist())
            columns = [processed[name] if name in processed.schema.names else raw[name] for name in schema.names]
            yield pa.table(columns, names=schema.names).cast(schema)


def _received_on(day: date) -> BooleanExpression:
    """Filter for signals that were received on this day (UTC)."""
    midnight = _midnight(day)
    return And(where(GreaterThanOrEqual, "received_at", midnight), where(LessThan, "received_at", midnight + ONE_DAY))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
