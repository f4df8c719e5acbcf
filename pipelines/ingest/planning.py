"""Plans a run: which segments are new, what they contain, and which of their messages the lake already has. No Spark."""

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

# Streams whose segments are compared for messages with the same seq, each with the table that has the seqs of its accepted
# messages. No table has those of data messages: if a data segment returns after it has been pruned from the ledger, its messages
# count as sightings once more. The outcome stream is absent, because its rows are deduplicated by (vin, seq) instead.
DEDUPLICATED_STREAMS: Mapping[Stream, Table | None] = {
    Stream.TRIGGER: IDS,
    Stream.DATA: None,
    Stream.ECQ: ECQ_INDEX,
    Stream.CAMPAIGN: CAMPAIGN_EVENTS,
    Stream.ANSWER: CAMPAIGN_ANSWERS,
    Stream.XRAY_RAW: XRAY_RAW,
    Stream.XRAY_STATUS: XRAY_STATUS,
}
SIGNALS = (Stream.XRAY_RAW, Stream.XRAY_STATUS)
PAYLOAD_STREAMS = (Stream.DATA, Stream.TRIGGER)  # streams whose messages may carry a payload


@dataclass(frozen=True, slots=True)
class Offenders:
    """Messages and whole files that a run refuses because an earlier audit found that they break a rule."""

    messages: Mapping[int, str] = field(default_factory=dict)  # seq → reason
    files: Mapping[str, str] = field(default_factory=dict)  # path → reason

    def __len__(self) -> int:
        return len(self.messages) + len(self.files)

    def __or__(self, other: "Offenders") -> "Offenders":
        """The offenders of both; where both have a reason, that of the left operand stays."""
        return Offenders({**other.messages, **self.messages}, {**other.files, **self.files})


@dataclass(frozen=True, slots=True)
class Plan:
    """The segments that a run ingests, and the snapshots of main on which the run is based."""

    base: Mapping[str, int]  # table name → id of main's snapshot
    segments: Sequence[Segment]
    probes: Mapping[str, Probe]  # path → what the segment contains
    # path → seqs to skip, because another segment has them, or because quarantine keeps the message (`conflict_history`)
    skips: Mapping[str, Sequence[int]] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)  # path → why the whole file is refused
    offenders: Mapping[int, str] = field(default_factory=dict)  # seq → why the message is refused, whatever its content

    @property
    def nodes(self) -> dict[str, int]:
        """Path → number of the recorder that, according to the file name, assigned all seqs of the segment.

        These segments were not compared with segments of other recorders, so `reading` verifies the number when it reads them.
        """
        nodes: dict[str, int] = {}
        for segment in self.segments:
            span = _span(segment, self.probes[segment.path])
            if segment.stream in DEDUPLICATED_STREAMS and span is not None and span.node is not None:
                nodes[segment.path] = span.node
        return nodes

    def segments_of(self, stream: Stream) -> list[Segment]:
        """The segments of one stream."""
        return [segment for segment in self.segments if segment.stream is stream]

    def message_count(self, stream: Stream) -> int:
        """The number of messages in the segments of one stream."""
        return sum(self.probes[segment.path].messages for segment in self.segments_of(stream))


@dataclass(frozen=True, slots=True)
class Span:
    """A segment's path and seq range."""

    path: str
    first: int  # lowest seq
    last: int  # highest seq
    derived: bool = False  # whether the seqs were derived from the path, because the file has none

    @property
    def node(self) -> int | None:
        """The number of the recorder that, according to the path, assigned all seqs of the segment; None if unknown."""
        return None if self.derived else claimed_node(self.path, self.first, self.last)

    def may_share_seqs(self, other: "Span") -> bool:
        """Whether this segment and `other`, whose range does not begin before this one's, may contain the same seq.

        Segments of different recorders cannot, because no two recorders assign the same seq.
        """
        ranges_overlap = self.last >= other.first
        differ_in_node = self.node is not None and other.node is not None and self.node != other.node
        return ranges_overlap and not differ_in_node


@dataclass(slots=True)
class Overlaps:
    """Result of comparing segments with overlapping seq ranges."""

    skips: dict[str, list[int]] = field(default_factory=dict)  # path → seqs to skip
    problems: dict[str, str] = field(default_factory=dict)  # path → why the whole file is refused


def make_plan(catalog: Catalog, archive: Archive, part: Selection = None, offenders: Offenders | None = None) -> Plan:
    """Plan a run that ingests the new segments in this part of the archive.

    The base snapshots are read first, and contain every run that is committed by then. If another run is published afterwards,
    this run cannot be published, and must start again with a new plan.
    """
    loaded = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, loaded)
    ledger = Ledger(loaded)
    candidates = archive.segments(part) if isinstance(part, Interval | None) else part
    known = ledger.known(segment.path for segment in candidates)
    new = [segment for segment in candidates if segment.path not in known]
    if any(segment.stream in SIGNALS for segment in new):
        make_signal_tables(catalog)
        # Add the snapshots of the tables just made. Those that `base` already has must stay, to be consistent with each other.
        base = current_snapshots(catalog, loaded) | base
    probes = dict(zip((segment.path for segment in new), probe(archive, new), strict=True))
    complete_from = pruned_before(loaded)
    complete_from_seq = 0 if complete_from is None else first_seq_at(complete_from)  # the ledger is complete from this seq on
    overlaps = _compare_segments(catalog, archive, ledger, new, probes, complete_from_seq)
    # A replay has the seq of a message in quarantine on purpose, so replays are not searched for messages that stay refused.
    with_payloads = [segment for segment in new if segment.stream in PAYLOAD_STREAMS and not segment.is_replay]
    payload_spans = _sorted_spans(_span(segment, probes[segment.path]) for segment in with_payloads)
    bounds = [(span.path, span.first, span.last) for span in payload_spans]
    for path, refused_seqs in still_refused(catalog, base, archive, bounds).items():
        overlaps.skips[path] = sorted({*overlaps.skips.get(path, ()), *refused_seqs})
    offenders = offenders or Offenders()
    problems = {**overlaps.problems, **offenders.files}
    return Plan(base, new, probes, overlaps.skips, problems, offenders.messages)


def _compare_segments(
    catalog: Catalog, archive: Archive, ledger: Ledger, new: list[Segment], probes: Mapping[str, Probe], complete_from_seq: int
) -> Overlaps:
    """Find, stream by stream, the messages of new segments that another segment, new or already ingested, has as well.

    The result says which of these messages to skip, and names as problems the segments that must be refused as a whole. From
    `complete_from_seq` on, the ledger knows every ingested segment.

    Replays are compared only with other replays. A replay repeats the seqs of refused messages, so it always overlaps the segment
    with the original messages, and that is no problem.
    """
    overlaps = Overlaps(problems={path: probed.problem for path, probed in probes.items() if probed.problem is not None})
    for stream, replayed in product(DEDUPLICATED_STREAMS, (False, True)):
        compared = [segment for segment in new if segment.stream is stream and segment.is_replay is replayed]
        new_spans = _sorted_spans(_span(segment, probes[segment.path]) for segment in compared)
        if new_spans:
            old_spans = _old_spans(ledger, stream, new_spans, replayed=replayed)
            _find_overlaps(catalog, archive, DEDUPLICATED_STREAMS[stream], new_spans, old_spans, overlaps, complete_from_seq)
    return overlaps


def _old_spans(ledger: Ledger, stream: Stream, new_spans: list[Span], *, replayed: bool) -> list[Span]:
    """The ingested segments of the stream within the seq range of the new ones; only replays, or only other segments."""
    first = min(span.first for span in new_spans)
    last = max(span.last for span in new_spans)
    rows = [row for row in ledger.overlapping(stream, first, last) if is_replay(row["path"]) is replayed]
    return _sorted_spans(Span(row["path"], row["first_seq"], row["last_seq"]) for row in rows)


def _span(segment: Segment, probed: Probe) -> Span | None:
    """The segment's seq range; None if the segment has no seqs."""
    if probed.first_seq is None or probed.last_seq is None:
        return None
    return Span(segment.path, probed.first_seq, probed.last_seq, probed.derived)


def _sorted_spans(spans: Iterable[Span | None]) -> list[Span]:
    """The spans in the order of their lowest seqs, without None."""
    return sorted((span for span in spans if span is not None), key=lambda span: span.first)


def _find_overlaps(
    catalog: Catalog,
    archive: Archive,
    seq_table: Table | None,
    new_spans: list[Span],
    old_spans: list[Span],
    overlaps: Overlaps,
    complete_from_seq: int,
) -> None:
    """Find the seqs of each new segment that an old segment, or an earlier new segment, also has; add them to `overlaps`.

    For seqs below `complete_from_seq`, the ledger and thus `old_spans` may lack segments. So the seqs in quarantine and in
    `seq_table`, which has those of accepted messages, are read instead. If `seq_table` is None, only quarantine is read.

    Usually no file is read, because the seq ranges of one recorder's segments follow each other without overlaps, and no other
    recorder assigns the same seqs. Seqs derived from a path are valid for that path only: if they collide with other seqs, the
    whole file is refused.
    """
    unchecked_by_ledger = [span for span in new_spans if span.first < complete_from_seq]
    paths_to_read = _overlapping_paths(new_spans, old_spans) | {span.path for span in unchecked_by_ledger}
    if not paths_to_read:
        return
    overlapping_old = [span for span in old_spans if span.path in paths_to_read]
    known_seqs = _seqs_in_lake(catalog, archive, seq_table, overlapping_old, unchecked_by_ledger)
    for span in new_spans:
        if span.path not in paths_to_read:
            continue
        try:
            seqs = seqs_of(archive, span.path)
        except Unreadable as exc:
            overlaps.problems[span.path] = str(exc)
            continue
        duplicates = [seq for seq in seqs if seq in known_seqs]
        if duplicates and span.derived:
            overlaps.problems[span.path] = (
                f"the seqs derived from its path collide with others ({duplicates[0]}); put it under another name"
            )
            continue
        if duplicates:
            overlaps.skips[span.path] = duplicates
        known_seqs.update(seqs)


def _seqs_in_lake(
    catalog: Catalog, archive: Archive, seq_table: Table | None, old_spans: list[Span], spans_before_ledger: list[Span]
) -> set[int]:
    """The seqs of the old segments, and those in the lake's tables in one range that covers `spans_before_ledger`.

    If the archive no longer has an old segment's file, its seqs are read from the tables instead.
    """
    seqs: set[int] = set()
    spans_in_tables = list(spans_before_ledger)
    for span in old_spans:
        if archive.exists(span.path):
            seqs.update(seqs_of(archive, span.path))
        else:
            spans_in_tables.append(span)
    if spans_in_tables:
        first = min(span.first for span in spans_in_tables)
        last = max(span.last for span in spans_in_tables)
        are_replays = is_replay(spans_in_tables[0].path)  # replays are compared only with replays, so all are or none is
        if not are_replays:  # a replay repeats the seqs of its original messages, which quarantine has
            seqs |= _seqs_in_table(catalog, QUARANTINE, first, last)
        if seq_table is not None:
            seqs |= _seqs_in_table(catalog, seq_table, first, last)
    return seqs


def _overlapping_paths(new_spans: list[Span], old_spans: list[Span]) -> set[str]:
    """Paths of all segments, new or old, that may have a seq in common with another segment, if one of the two is new."""
    paths: set[str] = set()
    new_paths = {span.path for span in new_spans}
    open_spans: list[Span] = []  # segments whose range reaches the current segment's lowest seq
    for span in _sorted_spans([*new_spans, *old_spans]):
        open_spans = [open_span for open_span in open_spans if open_span.last >= span.first]
        for open_span in open_spans:
            has_new = span.path in new_paths or open_span.path in new_paths
            if has_new and open_span.may_share_seqs(span):
                paths |= {span.path, open_span.path}
        open_spans.append(span)
    return paths


def _seqs_in_table(catalog: Catalog, table: Table, first: int, last: int) -> set[int]:
    """The distinct seqs in [first, last] that main of the table has."""
    day_column = table.day_of
    assert day_column is not None  # every table passed in has one
    row_filter = And(where(GreaterThanOrEqual, "seq", first), where(LessThanOrEqual, "seq", last))
    if table is not QUARANTINE:  # the day column of all other tables is the time in the seq, so days can be pruned
        is_after_first = where(GreaterThanOrEqual, day_column, datetime_of(first))
        is_before_last = where(LessThanOrEqual, day_column, datetime_of(last))
        row_filter = And(row_filter, And(is_after_first, is_before_last))
    seqs: set[int] = set()
    for batch in catalog.load_table(table.identifier).scan(row_filter, ("seq",)).to_arrow_batch_reader():
        seqs.update(pc.unique(batch["seq"]).to_pylist())  # a trigger has a row for each vehicle, all with the same seq
    return seqs
