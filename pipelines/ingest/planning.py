"""What a run has to do: which segments are new, what they hold, and which of their messages are in the lake already. No Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.table import Table as IcebergTable

from adapters.lake import where
from contracts.envelope import Stream
from contracts.seq import datetime_of
from contracts.tables import IDS, QUARANTINE, RUN_TABLES, SEGMENTS, Table
from pipelines.archive.content import Unreadable
from pipelines.archive.segments import Archive, Interval, Part, Probe, Segment, is_replay

# The outcome stream needs no such care: its rows are made distinct by (vin, seq), not by their message.
WATCHED = (Stream.TRIGGER, Stream.DATA)


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's work, and the snapshots of main from which it starts."""

    base: Mapping[str, int]  # table name → snapshot
    segments: Sequence[Segment]
    probes: Mapping[str, Probe]  # by path
    skips: Mapping[str, Sequence[int]] = field(default_factory=dict)  # path → seqs that another segment has brought
    problems: Mapping[str, str] = field(default_factory=dict)  # path → why the file is refused as a whole

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
    derived: bool = False


@dataclass(slots=True)
class Overlaps:
    """What came of looking at segments that share a span of seqs."""

    skips: dict[str, list[int]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def plan(catalog: Catalog, archive: Archive, part: Part = None) -> Plan:
    """What is new in this part of the archive.

    `base` is read first: what others publish later makes this run start again.
    """
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    rows = loaded.scan(selected_fields=("path", "stream", "first_seq", "last_seq")).to_arrow()
    offered = archive.segments(part) if isinstance(part, Interval | None) else part
    is_known = pc.is_in(pa.array([segment.path for segment in offered], pa.string()), value_set=rows["path"])
    new = [segment for segment, known in zip(offered, is_known.to_pylist(), strict=True) if not known]
    probes = dict(zip((s.path for s in new), archive.probe(new), strict=True))
    found = Overlaps(problems={path: probe.problem for path, probe in probes.items() if probe.problem is not None})
    for stream, replays in product(WATCHED, (False, True)):
        # A replay brings seqs that the archive has: those of messages that were refused. Only another replay repeats it.
        fresh = _spans(
            (Span(s.path, p.first_seq, p.last_seq, p.derived) if p.first_seq is not None and p.last_seq is not None else None)
            for s in new
            if s.stream is stream and s.is_replay is replays and (p := probes[s.path])
        )
        if fresh:
            near = _near(rows, stream, min(s.first for s in fresh), max(s.last for s in fresh))
            old = _spans(Span(r["path"], r["first_seq"], r["last_seq"]) for r in near if is_replay(r["path"]) is replays)
            _look_at_overlaps(catalog, archive, fresh, old, found)
    return Plan(base, new, probes, found.skips, found.problems)


def main_snapshots(catalog: Catalog, segments: IcebergTable) -> dict[str, int]:
    """By table name, main's snapshot of what runs write; that of `segments` is from before the others were read."""
    return {SEGMENTS.name: _main(segments)} | {
        t.name: _main(catalog.load_table(t.identifier)) for t in RUN_TABLES if t is not SEGMENTS
    }


def _main(table: IcebergTable) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None, f"{table.name()} has no snapshot; ensure_tables gives it one"
    return snapshot.snapshot_id


def _spans(spans: Iterable[Span | None]) -> list[Span]:
    return sorted((span for span in spans if span is not None), key=lambda s: s.first)


def _near(rows: pa.Table, stream: Stream, first: int, last: int) -> list[dict[str, Any]]:
    """The segments of a stream that reach into these seqs. There may be millions of others."""
    reaching = pc.and_(pc.less_equal(rows["first_seq"], last), pc.greater_equal(rows["last_seq"], first))
    found: list[dict[str, Any]] = rows.filter(pc.and_(pc.equal(rows["stream"], stream.value), reaching)).to_pylist()
    return found


def _look_at_overlaps(catalog: Catalog, archive: Archive, fresh: list[Span], old: list[Span], found: Overlaps) -> None:
    """Of each fresh segment: the seqs that an old one, or a fresh one before it, holds too.

    One recorder's segments follow each other, so that usually nothing overlaps and nothing is read. Seqs that follow from a
    path stand for messages of that path alone: if they meet others, the file is refused rather than taken for known.
    """
    touched = _overlapping(fresh, old)
    if not touched:
        return
    seen = _seqs_in_lake(catalog, archive, [s for s in old if s.path in touched])
    for span in (s for s in fresh if s.path in touched):
        try:
            seqs = archive.seqs(span.path)
        except Unreadable as exc:
            found.problems[span.path] = str(exc)
            continue
        again = [seq for seq in seqs if seq in seen]
        if again and span.derived:
            found.problems[span.path] = f"the seqs that follow from its path meet others ({again[0]}); put it under another name"
            continue
        if again:
            found.skips[span.path] = again
        seen.update(seqs)


def _seqs_in_lake(catalog: Catalog, archive: Archive, old: list[Span]) -> set[int]:
    """The seqs of segments that are in the lake."""
    seen: set[int] = set()
    gone: list[Span] = []
    for span in old:
        if archive.exists(span.path):
            seen.update(archive.seqs(span.path))
        else:
            gone.append(span)
    if gone:  # its file has passed the archive's retention, its rows are still there
        for table in (IDS,) if is_replay(gone[0].path) else (IDS, QUARANTINE):
            seen |= _seqs_of(catalog, table, min(s.first for s in gone), max(s.last for s in gone))
    return seen


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
