"""Reads what is recorded but not in the lake yet, from segments that were not ingested."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.segment import AHEAD, Interval
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream, from_arrow, inline_encoding
from manifold.contracts.messages import Trigger, parse_trigger, sha1_hex
from manifold.contracts.outcomes import Outcome, OutcomeRecord
from manifold.contracts.topics import RELEASE, data_topic
from manifold.history.entry import Bounds, EntryHistory
from manifold.settings import Settings

UNINGESTED_WINDOW = timedelta(days=1)  # how far back to look for segments that were not ingested
READERS = 4  # segments read concurrently
Choose = Callable[[pa.Table], pa.ChunkedArray]  # returns a mask of the wanted messages
MAX_NAMES = 200  # names searched per segment; above this, parsing every message is faster


@dataclass(slots=True)
class RecordedInArchive:
    """Accepted triggers, and outcomes by (vin, seq)."""

    triggers: list[tuple[int, Trigger]] = field(default_factory=list)  # with seqs
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)

    def ended(self, entry: EntryHistory) -> EntryHistory:
        """Return the entry with its archived outcome, if there is one."""
        record = self.outcomes.get((entry.vin, entry.seq))
        is_late = record is not None and record.outcome is Outcome.DELIVERED and entry.state == Outcome.WITHDRAWN
        return entry.ended(record) if record is not None and (entry.is_open or is_late) else entry


@dataclass(slots=True)
class RecordedTrigger:
    """An accepted trigger; `vins` is empty if they exceed the entry limit."""

    data_id: str
    vehicles: int
    vins: tuple[str, ...]


def read_recorded(settings: Settings, ingested: Set[str], *, vin: str = "", seqs: Set[int] = frozenset()) -> RecordedInArchive:
    """Read a vehicle's triggers and outcomes, or the outcomes of triggers, except from segments in `ingested` (their paths)."""
    found = RecordedInArchive()
    if vin:
        for seq, trigger in _triggers(settings, ingested, vin):
            if vin in trigger.ids:
                found.triggers.append((seq, trigger))
    for envelope in _messages(settings, ingested, Stream.OUTCOME, {vin} if vin else set(map(str, seqs))):
        with contextlib.suppress(ValueError):  # ingest quarantines it
            record = OutcomeRecord.from_wire(envelope.payload)
            if vin or record.seq in seqs:
                key = record.vin, record.seq
                found.outcomes[key] = record.joined(found.outcomes.get(key))
    return found


def triggers_recorded(settings: Settings, ingested: Set[str], request_id: str, bounds: Bounds) -> dict[int, RecordedTrigger]:
    """Return the newest triggers of a request_id by seq, one more than a page, from segments that are not in `ingested`.

    At most `bounds.entries` VINs are kept in memory, plus those of one trigger.
    """
    found: dict[int, RecordedTrigger] = {}
    for seq, trigger in _triggers(settings, ingested, request_id):
        if trigger.request_id != request_id or not bounds.since <= seq < bounds.before:
            continue
        found[seq] = RecordedTrigger(trigger.data_id, len(trigger.ids), trigger.ids)
        for old in sorted(found)[: -(bounds.limit + 1)]:
            del found[old]
        left = bounds.entries
        for kept in sorted(found, reverse=True):
            left -= found[kept].vehicles
            if left < 0:
                found[kept].vins = ()
    return found


def _triggers(settings: Settings, ingested: Set[str], name: str) -> Iterator[tuple[int, Trigger]]:
    """Yield accepted triggers whose payload may contain this name, with their seqs."""
    for envelope in _messages(settings, ingested, Stream.TRIGGER, {name}):
        trigger = _trigger(settings, envelope)
        if trigger is not None:
            yield envelope.seq, trigger


def _trigger(settings: Settings, envelope: Envelope) -> Trigger | None:
    """Parse the trigger in a message; None if it is invalid."""
    limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
    inline = inline_encoding(envelope.headers, settings.inline_encoding)
    trigger = parse_trigger(envelope.payload, **limits, inline=inline, is_release=envelope.topic == RELEASE)
    return trigger if isinstance(trigger, Trigger) else None


def _messages(settings: Settings, ingested: Set[str], stream: Stream, names: Set[str]) -> Iterator[Envelope]:
    """Yield the accepted messages that may contain one of `names`, without duplicates; reads a few segments at a time."""
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    segments = archive.segments(Interval(now - UNINGESTED_WINDOW, now + AHEAD)) if names else []
    paths = [segment.path for segment in segments if segment.stream is stream and segment.path not in ingested]
    with ThreadPoolExecutor(READERS, "segments") as pool:
        for some in _in_groups(paths):
            yield from chain.from_iterable(pool.map(partial(_read, archive, names), some))


def _in_groups(paths: list[str]) -> Iterator[list[str]]:
    return (paths[start : start + READERS] for start in range(0, len(paths), READERS))


def data_recorded(settings: Settings, ingested: Set[str], data_id: str) -> Iterator[tuple[int, datetime, bytes]]:
    """Yield (seq, received at, payload) of every publish of this data, inline or not, except from segments in `ingested`."""
    for envelope in not_ingested(settings, ingested, Stream.DATA, lambda rows: pc.equal(rows["topic"], data_topic(data_id))):
        yield envelope.seq, envelope.received_at, envelope.payload
    if len(data_id) != len(sha1_hex(b"")):
        return  # not a SHA-1, so it is not the id of inline data
    for envelope in not_ingested(settings, ingested, Stream.TRIGGER, lambda rows: _hold(rows["payload"], ['"data"'])):
        trigger = _trigger(settings, envelope)
        if trigger is not None and trigger.data is not None and trigger.data_id == data_id:
            yield envelope.seq, envelope.received_at, trigger.data


def not_ingested(settings: Settings, ingested: Set[str], stream: Stream, choose: Choose) -> Iterator[Envelope]:
    """Yield the accepted messages selected by `choose` from the segments that are not in `ingested` (their paths).

    Duplicates are included.
    """
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    for segment in archive.segments(Interval(now - UNINGESTED_WINDOW, now + AHEAD)):
        if segment.stream is not stream or segment.path in ingested:
            continue
        try:
            messages = decode(segment.path, archive.read(segment.path)).messages
        except (Unreadable, FileNotFoundError):  # ingest reports the problem
            continue
        yield from (envelope for envelope in from_arrow(messages.filter(choose(messages))) if envelope.refused_because is None)


def _read(archive: Archive, names: Set[str], path: str) -> list[Envelope]:
    """Return the accepted messages of a segment that contain one of `names`, and possibly others; without duplicates."""
    try:
        messages = decode(path, archive.read(path)).messages
    except (Unreadable, FileNotFoundError):  # ingest reports the problem
        return []
    found = from_arrow(messages.filter(_hold(messages["payload"], names)) if len(names) <= MAX_NAMES else messages)
    return [envelope for envelope in found if envelope.refused_because is None and envelope.duplicate_of is None]


def _hold(payloads: pa.ChunkedArray, names: Iterable[str]) -> pa.ChunkedArray:
    """Return which payloads contain one of `names`, or a backslash, with which JSON can escape any name. Parses nothing."""
    return pc.match_substring_regex(payloads, "|".join([r"\\", *map(re.escape, names)]))
