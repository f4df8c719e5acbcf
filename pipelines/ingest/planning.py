"""Plans a run: its new segments, their contents, and which of their messages are already in the lake. No Spark."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual

from manifold.archive.content import Unreadable
from manifold.archive.probing import Probe, probe, seqs_of
from manifold.archive.segment import Interval, Segment, Selection, claimed_node, is_replay
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import (
    CAMPAIGN_ANSWERS,
    CAMPAIGN_EVENTS,
    ECQ_INDEX,
    IDS,
    QUARANTINE,
    SEGMENTS,
    XRAY_RAW,
    XRAY_STATUS,
    Table,
)
from manifold.lake.catalog import make_signal_tables, where
from pipelines.ingest.conflict_history import still_refused
from pipelines.ingest.ledger import Ledger, pruned_before
from pipelines.ingest.publish import current_snapshots, main_snapshots

# The outcome stream is not here: its rows are deduplicated by (vin, seq), not by message.
WATCHED: Mapping[Stream, Table] = {  # stream → the table that has the seqs of its messages
    Stream.TRIGGER: IDS,
    Stream.DATA: IDS,
    Stream.ECQ: ECQ_INDEX,
    Stream.CAMPAIGN: CAMPAIGN_EVENTS,
    Stream.ANSWER: CAMPAIGN_ANSWERS,
    Stream.XRAY_RAW: XRAY_RAW,
    Stream.XRAY_STATUS: XRAY_STATUS,
}
SIGNALS = (Stream.XRAY_RAW, Stream.XRAY_STATUS)
PAYLOADS = (Stream.DATA, Stream.TRIGGER)  # streams whose messages may carry a payload


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Messages and files that a run refuses because they broke a rule before, with the reasons."""

    messages: Mapping[int, str] = field(default_factory=dict)  # by seq
    files: Mapping[str, str] = field(default_factory=dict)  # whole files, by path

    def __len__(self) -> int:
        return len(self.messages) + len(self.files)

    def __or__(self, other: "Exclusions") -> "Exclusions":
        return Exclusions({**other.messages, **self.messages}, {**other.files, **self.files})


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's work, and the snapshots of main on which it is based."""

    base: Mapping[str, int]  # table name → snapshot id
    segments: Sequence[Segment]
    probes: Mapping[str, Probe]  # by path
    skips: Mapping[str, Sequence[int]] = field(default_factory=dict)  # path → seqs that another segment has already brought
    problems: Mapping[str, str] = field(default_factory=dict)  # path → why the file is refused as a whole
    aside: Mapping[int, str] = field(default_factory=dict)  # seq → why the message is refused

    @property
    def nodes(self) -> dict[str, int]:
        """Path → recorder that the file name claims, for segments that were not compared with other recorders' because of it."""
        found = {s.path: span.node for s in self.segments if s.stream in WATCHED and (span := _span(s, self.probes[s.path]))}
        return {path: node for path, node in found.items() if node is not None}

    def of(self, stream: Stream) -> list[Segment]:
        """The segments of one stream."""
        return [segment for segment in self.segments if segment.stream is stream]

    def messages(self, stream: Stream) -> int:
        """The number of messages in the segments of one stream."""
        return sum(self.probes[segment.path].messages for segment in self.of(stream))


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's path and seq range."""

    path: str
    first: int
    last: int
    derived: bool = False

    @property
    def node(self) -> int | None:
        """The recorder that assigned all of the segment's seqs; None if unknown."""
        return None if self.derived else claimed_node(self.path, self.first, self.last)

    def may_share(self, other: "Span") -> bool:
        """Whether both may hold the same seq; no two recorders assign the same one."""
        return self.last >= other.first and (self.node is None or other.node is None or self.node == other.node)


@dataclass(slots=True)
class Overlaps:
    """Result of comparing segments with overlapping seq ranges: the seqs to skip and the files to refuse, by path."""

    skips: dict[str, list[int]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def make_plan(catalog: Catalog, archive: Archive, part: Selection = None, aside: Exclusions | None = None) -> Plan:
    """Plan the new segments in this part of the archive.

    `base` is read first and includes every committed run; a run published later overtakes this one, which then starts again.
    """
    loaded = catalog.load_table(SEGMENTS.identifier)
    base, ledger = main_snapshots(catalog, loaded), Ledger(loaded)
    offered = archive.segments(part) if isinstance(part, Interval | None) else part
    known = ledger.known(segment.path for segment in offered)
    new = [segment for segment in offered if segment.path not in known]
    if any(segment.stream in SIGNALS for segment in new):
        # Include them in the base, so that later publications to them overtake this run.
        make_signal_tables(catalog)
        base = current_snapshots(catalog, loaded) | base
    probes = dict(zip((s.path for s in new), probe(archive, new), strict=True))
    complete_from = pruned_before(loaded)
    pruned = 0 if complete_from is None else first_seq_at(complete_from)
    found = Overlaps(problems={path: probe.problem for path, probe in probes.items() if probe.problem is not None})
    for stream, replays in product(WATCHED, (False, True)):
        # A replay has seqs that the archive already has, those of refused messages. Only another replay can duplicate it.
        fresh = _spans(_span(s, probes[s.path]) for s in new if s.stream is stream and s.is_replay is replays)
        if fresh:
            near = ledger.reaching(stream, min(s.first for s in fresh), max(s.last for s in fresh))
            old = _spans(Span(r["path"], r["first_seq"], r["last_seq"]) for r in near if is_replay(r["path"]) is replays)
            _find_overlaps(catalog, archive, WATCHED[stream], fresh, old, found, pruned)
    bringing = (span for s in new if s.stream in PAYLOADS and not s.is_replay and (span := _span(s, probes[s.path])))
    for path, seqs in still_refused(catalog, base, archive, ((s.path, s.first, s.last) for s in bringing)).items():
        found.skips[path] = sorted({*found.skips.get(path, ()), *seqs})
    aside = aside or Exclusions()
    return Plan(base, new, probes, found.skips, {**found.problems, **aside.files}, aside.messages)


def _span(segment: Segment, probed: Probe) -> Span | None:
    if probed.first_seq is None or probed.last_seq is None:
        return None
    return Span(segment.path, probed.first_seq, probed.last_seq, probed.derived)


def _spans(spans: Iterable[Span | None]) -> list[Span]:
    return sorted((span for span in spans if span is not None), key=lambda s: s.first)


def _find_overlaps(
    catalog: Catalog, archive: Archive, table: Table, fresh: list[Span], old: list[Span], found: Overlaps, pruned: int
) -> None:
    """Find the seqs in each fresh segment that an old segment, or an earlier fresh one, also holds.

    The ledger may lack old segments with seqs below `pruned`; for those, `table` and quarantine are read instead.

    A recorder's segments follow each other, and no other recorder assigns its seqs, so usually nothing is read. Seqs derived
    from a path identify messages of that path alone: if they collide with others, the file is refused, not deduplicated.
    """
    late = [span for span in fresh if span.first < pruned]
    touched = _overlapping(fresh, old) | {span.path for span in late}
    if not touched:
        return
    seen = _seqs_in_lake(catalog, archive, table, [s for s in old if s.path in touched], late)
    for span in (s for s in fresh if s.path in touched):
        try:
            seqs = seqs_of(archive, span.path)
        except Unreadable as exc:
            found.problems[span.path] = str(exc)
            continue
        again = [seq for seq in seqs if seq in seen]
        if again and span.derived:
            found.problems[span.path] = (
                f"the seqs derived from its path collide with others ({again[0]}); put it under another name"
            )
            continue
        if again:
            found.skips[span.path] = again
        seen.update(seqs)


def _seqs_in_lake(catalog: Catalog, archive: Archive, table: Table, old: list[Span], late: list[Span]) -> set[int]:
    """Seqs in old segments, and all seqs in the tables within the ranges of `late` segments and of deleted old ones."""
    seen: set[int] = set()
    gone = list(late)
    for span in old:
        if archive.exists(span.path):
            seen.update(seqs_of(archive, span.path))
        else:
            gone.append(span)
    if gone:  # past the archive's retention: the file is gone, its rows are not
        for each in (table,) if is_replay(gone[0].path) else (table, QUARANTINE):
            seen |= _seqs_of(catalog, each, min(s.first for s in gone), max(s.last for s in gone))
    return seen


def _overlapping(fresh: list[Span], old: list[Span]) -> set[str]:
    """Paths of both segments in each overlap of seq ranges that involves a fresh one."""
    touched: set[str] = set()
    is_fresh = {span.path for span in fresh}
    open_spans: list[Span] = []
    for span in sorted([*fresh, *old], key=lambda s: s.first):
        open_spans = [s for s in open_spans if s.last >= span.first]
        for other in open_spans:
            if (span.path in is_fresh or other.path in is_fresh) and other.may_share(span):
                touched |= {span.path, other.path}
        open_spans.append(span)
    return touched


def _seqs_of(catalog: Catalog, table: Table, first: int, last: int) -> set[int]:
    assert table.day_of is not None  # true of every table passed in
    seqs = And(where(GreaterThanOrEqual, "seq", first), where(LessThanOrEqual, "seq", last))
    if table is not QUARANTINE:  # partitioned by the day of its seq
        day = table.day_of
        seqs = And(seqs, where(GreaterThanOrEqual, day, datetime_of(first)), where(LessThanOrEqual, day, datetime_of(last)))
    found: set[int] = set()
    for batch in catalog.load_table(table.identifier).scan(seqs, ("seq",)).to_arrow_batch_reader():
        found.update(pc.unique(batch["seq"]).to_pylist())  # a trigger has a row for each vehicle
    return found
