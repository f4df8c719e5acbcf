"""Reprocesses raw signals by the current rules: `python -m pipelines process_signals`. No Spark.

Each day is a run of its own that replaces all rows of the day. It takes effect in one commit, as an ingest does, and
a concurrent ingest starts again. Rows are made in batches, so a day may have any size.
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
_READ = ("device_id", "captured_at", "content_digest", "seq", "received_at", "schema_version", "correlation_id", "payload")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Processed:
    """Days and rows that were reprocessed."""

    days: list[str] = field(default_factory=list)
    rows: int = 0
    unread: int = 0  # of those, rows whose payload could not be opened

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
    """Reprocess the days from `start` to `end` (None: all) with rows made by other rules, or with payloads not read.

    With `again`, reprocess all of these days, because rules are settings, too (`signals_bounds`). Idempotent.

    Raises:
        ConcurrentPublish: other runs kept being published first; finished days stay finished.
        SettingsError: the key ring cannot be read: existing rows would be emptied.
        OSError: the key storage failed.
    """
    done = Processed()
    if not has_signals(catalog):
        return done
    require_ring(settings)
    processing = Processing.of(settings)
    for day in _days(catalog, start, end):
        rows = until_not_overtaken()(lambda day=day: _day(catalog, processing, day, now, again=again, done=done))
        if rows is not None:
            done.days.append(day.isoformat())
            done.rows += rows
            log.info("signals reprocessed", day=day.isoformat(), rows=rows, rules_version=RULES)
    return done


def _days(catalog: Catalog, start: datetime | None, end: datetime | None) -> list[date]:
    loaded = catalog.load_table(XRAY_RAW.identifier)
    days = {day for task in loaded.scan().plan_files() for day in days_of(loaded, task.file)}
    first, last = (at.astimezone(UTC) if at is not None else None for at in (start, end))
    return sorted(
        day for day in days if (first is None or _midnight(day) + ONE_DAY > first) and (last is None or _midnight(day) < last)
    )


def _day(catalog: Catalog, processing: Processing, day: date, now: datetime, *, again: bool, done: Processed) -> int | None:
    """Reprocess one day; return the number of rows, or None if there was nothing to do."""
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    if not again and not _is_stale(catalog, base[XRAY_PROCESSED.name], day):
        return None
    counts = {"rows": 0, "unread": 0}
    run = MaintenanceRun(catalog, "process", base, now)

    def pieces() -> Iterator[pa.Table]:
        counts.update(rows=0, unread=0)
        for piece in _process_batches(catalog, processing, base[XRAY_RAW.name], day):
            counts["rows"] += piece.num_rows
            counts["unread"] += piece.num_rows - piece["problem"].null_count
            yield piece

    run.change(XRAY_PROCESSED, partial(overwrite_days, catalog, XRAY_PROCESSED, [day], pieces))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    done.unread += counts["unread"]
    return counts["rows"]


def _is_stale(catalog: Catalog, at: int, day: date) -> bool:
    stale = Or(NotEqualTo(term="rules", value=RULES), NotNull(term="problem"))
    found = catalog.load_table(XRAY_PROCESSED.identifier).scan(And(_received_on(day), stale), ("seq",), snapshot_id=at, limit=1)
    return bool(found.to_arrow().num_rows)


def _process_batches(catalog: Catalog, processing: Processing, at: int, day: date) -> Iterator[pa.Table]:
    scan = catalog.load_table(XRAY_RAW.identifier).scan(_received_on(day), _READ, snapshot_id=at)
    for batch in scan.to_arrow_batch_reader():
        for start in range(0, batch.num_rows, ROW_BATCH_SIZE):
            rows = batch.slice(start, ROW_BATCH_SIZE)
            made = processing.made_of(rows["seq"].to_pylist(), rows["payload"].to_pylist())
            schema = XRAY_PROCESSED.arrow_schema
            columns = [made[name] if name in made.schema.names else rows[name] for name in schema.names]
            yield pa.table(columns, names=schema.names).cast(schema)


def _received_on(day: date) -> BooleanExpression:
    return And(where(GreaterThanOrEqual, "received_at", _midnight(day)), where(LessThan, "received_at", _midnight(day) + ONE_DAY))


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
