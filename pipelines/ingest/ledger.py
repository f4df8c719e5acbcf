"""Reads the ledger, `ingested_segments`, by interval: it holds years of segments, and a run needs few. No Spark."""

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

PRUNED_BEFORE = "manifold.pruned-before"  # table property: rows of segments begun before this may be deleted, with their files


class Ledger:
    """The ledger: main of `ingested_segments` as loaded, or at one of its snapshots."""

    def __init__(self, table: IcebergTable, snapshot_id: int | None = None) -> None:
        self._table, self._snapshot_id = table, snapshot_id

    def known(self, paths: Iterable[str]) -> set[str]:
        """Return those of `paths` that are in the lake."""
        return set(self.rows(paths)["path"].to_pylist())

    def rows(self, paths: Iterable[str], *columns: str) -> pa.Table:
        """The rows of these segments: `path` and `columns`. Only the days on which they began are read."""
        wanted = pa.array(set(paths), pa.string())
        if not len(wanted):
            return _table([], ("path", *columns))
        filters = of_days({day_of(path) for path in wanted.to_pylist()}) if self._has_days() else [AlwaysTrue()]
        batches = (batch for one in filters for batch in self.scan(one, "path", *columns))
        return _table((b.filter(pc.is_in(b["path"], value_set=wanted.cast(b["path"].type))) for b in batches), ("path", *columns))

    def reaching(self, stream: Stream, first: int, last: int) -> list[dict[str, Any]]:
        """Segments of a stream whose seq range overlaps [first, last]: path, first_seq and last_seq."""
        seqs = And(where(LessThanOrEqual, "first_seq", last), where(GreaterThanOrEqual, "last_seq", first))
        columns = ("path", "first_seq", "last_seq")
        batches = self.scan(And(where(EqualTo, "stream", stream.value), seqs), *columns)
        found: list[dict[str, Any]] = _table(batches, columns).to_pylist()
        return found

    def scan(self, row_filter: BooleanExpression, *columns: str) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in batches."""
        yield from self._table.scan(row_filter, columns, snapshot_id=self._snapshot_id).to_arrow_batch_reader()

    def _has_days(self) -> bool:
        """Whether the schema of the snapshot has the column `began_at`."""
        at = self._table.snapshot_by_id(self._snapshot_id) if self._snapshot_id is not None else None
        schema = self._table.schemas()[at.schema_id] if at is not None and at.schema_id is not None else self._table.schema()
        return any(field.name == "began_at" for field in schema.fields)


def ledger_of(catalog: Catalog) -> Ledger:
    """The current ledger."""
    return Ledger(catalog.load_table(SEGMENTS.identifier))


def pruned_before(segments: IcebergTable) -> datetime | None:
    """The instant from which the ledger is complete; None if it was never pruned."""
    pruned = segments.properties.get(PRUNED_BEFORE)
    return None if pruned is None else datetime.fromisoformat(pruned)


def day_of(path: str) -> date | None:
    """The day under which the segment's row is found; None if the path has no instant."""
    at = began_at(path)
    return None if at is None else at.date()


def of_days(days: Iterable[date | None]) -> list[BooleanExpression]:
    """Filters for rows of segments begun on these days, and for rows without a day.

    Rows have no day if the path names none, or if they were written before the ledger had days. The filters are separate because
    PyIceberg cannot compare a null partition, which a combined filter would meet.
    """
    ranges = day_spans(day for day in days if day is not None)
    dayless: BooleanExpression = IsNull(term="began_at")
    return [*([reduce(Or, (_began_between(first, last) for first, last in ranges))] if ranges else []), dayless]


def _began_between(first: date, last: date) -> BooleanExpression:
    midnight, end = (datetime.combine(day, time(), UTC) for day in (first, last + ONE_DAY))
    return And(where(GreaterThanOrEqual, "began_at", midnight), where(LessThan, "began_at", end))


def missing_segments(ledger: Ledger, archive: Archive, since: date = date.min) -> Iterator[str]:
    """Yield the ledger's segments, begun on or after `since`, that are missing from the archive.

    Archive and ledger are walked together, day by day; only segments not found under their day are looked up individually.
    """
    after = since
    for group in archive.walk():
        here = {segment.path for segment in group}
        days = [day for path in here if "/dt=" in path and (day := day_of(path)) is not None]
        if days and (last := max(days)) >= after:
            yield from _absent(ledger.scan(_began_between(after, last), "path"), here, archive)
            after = last + ONE_DAY
    later = where(GreaterThanOrEqual, "began_at", datetime.combine(after, time(), UTC))
    yield from _absent(ledger.scan(later, "path"), set(), archive)
    for batch in ledger.scan(IsNull(term="began_at"), "path"):
        old = [path for path in batch["path"].to_pylist() if since == date.min or (day_of(path) or date.min) >= since]
        yield from sorted(set(old) - archive.present(old))


def _absent(batches: Iterable[pa.RecordBatch], here: set[str], archive: Archive) -> Iterator[str]:
    for batch in batches:
        elsewhere = set(batch["path"].to_pylist()) - here
        yield from sorted(elsewhere - archive.present(elsewhere))


def new_segments(catalog: Catalog, archive: Archive, part: Selection = None) -> Iterator[Segment]:
    """Yield the segments in this part of the archive that no run has ingested, oldest first as far as its folders tell.

    The ledger is read as of the start. Neither ledger nor archive is ever in memory as a whole.
    """
    ledger = ledger_of(catalog)
    for group in _groups(archive, part):
        known = ledger.known(segment.path for segment in group)
        yield from (segment for segment in group if segment.path not in known)


def segments_of(catalog: Catalog, run_id: str) -> list[tuple[str, Stream]]:
    """The files that the run ingests, from the ledger on its branch; reads only what its snapshot adds."""
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or head.parent_snapshot_id is None:  # the run is open, and nothing is written yet
        return []
    added = SnapshotRange(SEGMENTS, head.parent_snapshot_id, head.snapshot_id, 1)
    rows = added.read(catalog, where(EqualTo, "run_id", run_id), ("path", "stream")).to_pylist()
    return [(row["path"], Stream(row["stream"])) for row in rows]


def _groups(archive: Archive, part: Selection) -> Iterator[Sequence[Segment]]:
    if part is None or isinstance(part, Interval):
        return archive.walk(part)
    given = sorted(part, key=lambda segment: segment.age)
    return (given[start : start + SEGMENT_BATCH_SIZE] for start in range(0, len(given), SEGMENT_BATCH_SIZE))


def _table(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    """Rows cast to the types of the table definition, whatever types the reader chose."""
    schema = pa.schema([pa.field(name, SEGMENTS.arrow_schema.field(name).type) for name in columns])
    tables = [pa.Table.from_batches([batch]).select(columns).cast(schema) for batch in batches]
    return pa.concat_tables(tables) if tables else schema.empty_table()
