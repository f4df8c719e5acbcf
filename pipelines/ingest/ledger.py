"""Reads the ledger, `ingested_segments`, by day: it lists the segments of years, and a run needs only a few. No Spark."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Or,
)
from pyiceberg.table import Table as IcebergTable

from manifold.archive.segment import Interval, Segment, Selection, began_at
from manifold.archive.store import SEGMENT_BATCH_SIZE, Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import where
from pipelines.ingest.branches import head_of
from pipelines.ingest.day_spans import ONE_DAY, day_spans
from pipelines.populate.snapshot_range import SnapshotRange

# Table property: an instant. Rows of segments that began before it, and the segments' files, may have been deleted.
PRUNED_BEFORE = "manifold.pruned-before"


class Ledger:
    """The table `ingested_segments`: its main as loaded, or the snapshot `snapshot_id`."""

    def __init__(self, table: IcebergTable, snapshot_id: int | None = None) -> None:
        self._table, self._snapshot_id = table, snapshot_id

    def known(self, paths: Iterable[str]) -> set[str]:
        """Return the paths whose segments are in the lake."""
        return set(self.rows(paths)["path"].to_pylist())

    def rows(self, paths: Iterable[str], *columns: str) -> pa.Table:
        """The rows of these segments, with the columns `path` and `columns`.

        Only the partitions of the days on which the segments began are read.
        """
        wanted = pa.array(set(paths), pa.string())
        selected = ("path", *columns)
        if not len(wanted):
            return _table([], selected)
        filters: list[BooleanExpression] = [AlwaysTrue()]
        if self._has_day_column():  # a snapshot of an earlier release lacks it
            filters = day_filters({day_of(path) for path in wanted.to_pylist()})
        batches = []
        for row_filter in filters:
            for batch in self.scan(row_filter, *selected):
                is_wanted = pc.is_in(batch["path"], value_set=wanted.cast(batch["path"].type))
                batches.append(batch.filter(is_wanted))
        return _table(batches, selected)

    def overlapping(self, stream: Stream, first: int, last: int) -> list[dict[str, Any]]:
        """Segments of a stream whose seq range overlaps [first, last]: path, first_seq and last_seq."""
        overlaps = And(where(LessThanOrEqual, "first_seq", last), where(GreaterThanOrEqual, "last_seq", first))
        columns = ("path", "first_seq", "last_seq")
        batches = self.scan(And(where(EqualTo, "stream", stream.value), overlaps), *columns)
        rows: list[dict[str, Any]] = _table(batches, columns).to_pylist()
        return rows

    def scan(self, row_filter: BooleanExpression, *columns: str) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in batches."""
        yield from self._table.scan(row_filter, columns, snapshot_id=self._snapshot_id).to_arrow_batch_reader()

    def _has_day_column(self) -> bool:
        """Whether the schema of the snapshot has the column `began_at`."""
        schema = self._table.schema()  # that of main
        snapshot = self._table.snapshot_by_id(self._snapshot_id) if self._snapshot_id is not None else None
        if snapshot is not None and snapshot.schema_id is not None:
            schema = self._table.schemas()[snapshot.schema_id]
        return any(field.name == "began_at" for field in schema.fields)


def ledger_of(catalog: Catalog) -> Ledger:
    """The current ledger."""
    return Ledger(catalog.load_table(SEGMENTS.identifier))


def pruned_before(segments: IcebergTable) -> datetime | None:
    """The instant at which the complete part of the ledger begins; None if the ledger was never pruned."""
    pruned = segments.properties.get(PRUNED_BEFORE)
    return None if pruned is None else datetime.fromisoformat(pruned)


def day_of(path: str) -> date | None:
    """The day on which the segment began, according to its path; None if the path contains no instant."""
    instant = began_at(path)
    return None if instant is None else instant.date()


def day_filters(days: Iterable[date | None]) -> list[BooleanExpression]:
    """Filters that together select the rows of segments that began on these days, and all rows without a day.

    A row has no day if the segment's path contains no instant, or if the row was written before the ledger had the column. The
    filters must be scanned separately: with a combined filter, PyIceberg would compare a null partition, which it cannot do.
    """
    dayless: BooleanExpression = IsNull(term="began_at")
    spans = [_began_between(first, last) for first, last in day_spans(day for day in days if day is not None)]
    return [reduce(Or, spans), dayless] if spans else [dayless]


def _began_between(first: date, last: date) -> BooleanExpression:
    """A filter for the rows of segments that began on the days from `first` to `last`, inclusive."""
    return And(where(GreaterThanOrEqual, "began_at", _midnight(first)), where(LessThan, "began_at", _midnight(last + ONE_DAY)))


def _midnight(day: date) -> datetime:
    """The first instant of the day, in UTC."""
    return datetime.combine(day, time(), UTC)


def missing_segments(ledger: Ledger, archive: Archive, since: date = date.min) -> Iterator[str]:
    """Yield the paths of segments that are in the ledger, began on or after the day `since`, and are missing from the archive.

    Archive and ledger are walked together, day by day. The archive is asked for single files only where a segment of the ledger
    is not among the archive's files of the same days.
    """
    unchecked_from = since  # the first day that is not compared yet
    for group in archive.walk():
        archived = {segment.path for segment in group}
        last = _last_walked_day(archived)
        # Else there is nothing to compare: no file of the group is in a day folder, or all days are before `since`.
        if last is not None and last >= unchecked_from:
            yield from _missing(ledger.scan(_began_between(unchecked_from, last), "path"), archived, archive)
            unchecked_from = last + ONE_DAY
    # Segments of the ledger that began after all files in day folders.
    is_later = where(GreaterThanOrEqual, "began_at", _midnight(unchecked_from))
    yield from _missing(ledger.scan(is_later, "path"), set(), archive)
    # Rows without a day. An earlier release may have written them, so the path can still tell the day.
    for batch in ledger.scan(IsNull(term="began_at"), "path"):
        paths = batch["path"].to_pylist()
        if since != date.min:  # without this limit, paths that contain no instant are checked as well
            paths = [path for path in paths if _is_known_to_begin_since(path, since)]
        yield from sorted(set(paths) - archive.present(paths))


def _last_walked_day(paths: Iterable[str]) -> date | None:
    """The last day of the files in day folders; None if there are none.

    The archive is walked by day folders, so the days of files outside of them, which come first, do not tell how far the walk is.
    """
    days = [day_of(path) for path in paths if "/dt=" in path]
    return max((day for day in days if day is not None), default=None)


def _is_known_to_begin_since(path: str, since: date) -> bool:
    """Whether the segment began on or after the day `since`; False if its path contains no instant."""
    day = day_of(path)
    return day is not None and day >= since


def _missing(batches: Iterable[pa.RecordBatch], archived: set[str], archive: Archive) -> Iterator[str]:
    """Yield the paths in the batches that are missing from the archive. The paths in `archived` are known to be in it."""
    for batch in batches:
        unconfirmed = set(batch["path"].to_pylist()) - archived
        yield from sorted(unconfirmed - archive.present(unconfirmed))


def new_segments(catalog: Catalog, archive: Archive, part: Selection = None) -> Iterator[Segment]:
    """Yield the segments in this part of the archive that no run has ingested.

    They come oldest first, by the days in the names of their folders. The ledger is read at its snapshot at the start of the
    iteration. Ledger and archive are read piecewise, so that neither is in memory as a whole.
    """
    ledger = ledger_of(catalog)
    for group in _groups(archive, part):
        known = ledger.known(segment.path for segment in group)
        yield from (segment for segment in group if segment.path not in known)


def segments_of(catalog: Catalog, run_id: str) -> list[tuple[str, Stream]]:
    """The path and stream of each file that the run ingests, from the rows that the run adds to `ingested_segments`."""
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or head.parent_snapshot_id is None:  # the run has not written `ingested_segments` yet
        return []
    added = SnapshotRange(SEGMENTS, head.parent_snapshot_id, head.snapshot_id, rows=1)  # at least one; their number is not needed
    rows = added.read(catalog, where(EqualTo, "run_id", run_id), ("path", "stream")).to_pylist()
    return [(row["path"], Stream(row["stream"])) for row in rows]


def _groups(archive: Archive, part: Selection) -> Iterator[Sequence[Segment]]:
    """The segments of this part of the archive in groups: oldest first, by the days in the names of their folders."""
    if part is None or isinstance(part, Interval):
        return archive.walk(part)
    segments = sorted(part, key=lambda segment: segment.age)
    return (segments[start : start + SEGMENT_BATCH_SIZE] for start in range(0, len(segments), SEGMENT_BATCH_SIZE))


def _table(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    """The batches as one table with these columns, cast to the types in the definition of `ingested_segments`."""
    schema = pa.schema([pa.field(name, SEGMENTS.arrow_schema.field(name).type) for name in columns])
    tables = [pa.Table.from_batches([batch]).select(columns).cast(schema) for batch in batches]
    return pa.concat_tables(tables) if tables else schema.empty_table()
