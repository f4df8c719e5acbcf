"""What a run has to do: which segments are new, what they hold, and which of their messages are in the lake already. No Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import Table as IcebergTable

from adapters.lake import where
from contracts.envelope import Stream
from contracts.seq import datetime_of
from contracts.tables import IDS, QUARANTINE, SEGMENTS, TABLES, Table
from pipelines.archive import Archive, Interval, Probe, Segment

# The outcome stream needs no such care: its rows are made distinct by (vin, seq), not by their message.
WATCHED = (Stream.TRIGGER, Stream.DATA)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's work, and the snapshots of main from which it starts."""

    base: Mapping[str, int]  # table name → snapshot
    segments: Sequence[Segment]
    probes: Mapping[str, Probe]  # by path
    skips: Mapping[str, Sequence[int]] = field(default_factory=dict)  # path → seqs that another segment has brought

    def of(self, stream: Stream) -> list[Segment]:
        """The segments of one stream."""
        return [segment for segment in self.segments if segment.stream is stream]

    def messages(self, stream: Stream) -> int:
        """How many messages they hold."""
        return sum(self.probes[segment.path].messages for segment in self.of(stream))


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's path and the seqs between which its messages lie."""

    path: str
    first: int
    last: int


def plan(catalog: Catalog, archive: Archive, interval: Interval | None) -> Plan:
    """What is new in the archive. `base` is read first: what others publish later makes this run start again."""
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = {SEGMENTS.name: _main(loaded)} | {t.name: _main(catalog.load_table(t.identifier)) for t in TABLES if t is not SEGMENTS}
    rows = loaded.scan(selected_fields=("path", "stream", "first_seq", "last_seq")).to_arrow()
    known = set(rows["path"].to_pylist())
    new = [segment for segment in archive.segments(interval) if segment.path not in known]
    probes = dict(zip((s.path for s in new), archive.probe(new), strict=True))
    skips: dict[str, list[int]] = {}
    for stream in WATCHED:
        fresh = _spans((s.path, probes[s.path].first_seq, probes[s.path].last_seq) for s in new if s.stream is stream)
        old = (
            _spans((r["path"], r["first_seq"], r["last_seq"]) for r in rows.to_pylist() if r["stream"] == stream) if fresh else []
        )
        skips |= _skips(catalog, archive, fresh, old)
    return Plan(base, new, probes, skips)


def _main(table: IcebergTable) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot; ensure_tables gives it one"
    return snapshot.snapshot_id


def _spans(rows: Iterable[tuple[str, int | None, int | None]]) -> list[Span]:
    return sorted(
        (Span(path, first, last) for path, first, last in rows if first is not None and last is not None), key=lambda s: s.first
    )


def _skips(catalog: Catalog, archive: Archive, fresh: list[Span], old: list[Span]) -> dict[str, list[int]]:
    """By path of a fresh segment: seqs that an old segment, or a fresh one before it, holds too.

    One recorder's segments follow each other, so that usually nothing overlaps and nothing is read.
    """
    skips: dict[str, list[int]] = {}
    touched = _overlapping(fresh, old)
    if not touched:
        return skips
    seen: set[int] = set()
    gone: list[Span] = []
    for span in (s for s in old if s.path in touched):
        if archive.exists(span.path):
            seen.update(archive.seqs(span.path))
        else:
            gone.append(span)
    if gone:  # its file has passed the archive's retention, its rows are still there
        for table in (IDS, QUARANTINE):
            seen |= _seqs_of(catalog, table, min(s.first for s in gone), max(s.last for s in gone))
    for span in (s for s in fresh if s.path in touched):
        seqs = archive.seqs(span.path)
        skips[span.path] = [seq for seq in seqs if seq in seen]
        seen.update(seqs)
    return {path: seqs for path, seqs in skips.items() if seqs}


def _overlapping(fresh: list[Span], old: list[Span]) -> set[str]:
    """Paths of the segments that share a span of seqs with a fresh one."""
    touched: set[str] = set()
    is_fresh = {span.path for span in fresh}
    open_spans: list[Span] = []
    for span in sorted([*fresh, *old], key=lambda s: s.first):
        open_spans = [s for s in open_spans if s.last >= span.first]
        for other in open_spans:
            if span.path in is_fresh or other.path in is_fresh:
                touched |= {span.path, other.path}
        open_spans.append(span)
    return touched


def _seqs_of(catalog: Catalog, table: Table, first: int, last: int) -> set[int]:
    assert table.day_of is not None  # both tables asked here have days
    seqs = And(where(GreaterThanOrEqual, "seq", first), where(LessThanOrEqual, "seq", last))
    if table is IDS:  # its day is the day of its seq
        seqs = And(seqs, where(GreaterThanOrEqual, "ts", datetime_of(first)), where(LessThanOrEqual, "ts", datetime_of(last)))
    return set(catalog.load_table(table.identifier).scan(seqs, ("seq",)).to_arrow()["seq"].to_pylist())
