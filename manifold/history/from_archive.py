"""Reads what is recorded and not in the lake yet, from the segments that the lake has not taken in."""

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
from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream, from_arrow, inline_encoding
from manifold.contracts.messages import Trigger, parse_trigger, sha1_hex
from manifold.contracts.outcomes import OutcomeRecord
from manifold.contracts.topics import data_topic
from manifold.history.entry import Bounds, EntryHistory
from manifold.settings import Settings

BACK = timedelta(days=1)  # how far back segments are looked for that no ingest has taken in
READERS = 4  # segments that are read at once
Choose = Callable[[pa.Table], pa.ChunkedArray]  # of messages, which are meant
MAX_NAMES = 200  # that a segment is searched for; looking for more takes longer than parsing all


@dataclass(slots=True)
class RecordedInArchive:
    """Triggers that were accepted, and outcomes by (vin, seq)."""

    triggers: list[tuple[int, Trigger]] = field(default_factory=list)  # with their seqs
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)

    def ended(self, entry: EntryHistory) -> EntryHistory:
        """The entry, with its outcome where the archive has one."""
        record = self.outcomes.get((entry.vin, entry.seq)) if entry.is_open else None
        return entry if record is None else entry.ended(record)


@dataclass(slots=True)
class RecordedTrigger:
    """A trigger that was accepted; `vins` is empty where more are named than were asked for."""

    data_id: str
    vehicles: int
    vins: tuple[str, ...]


def read_recorded(settings: Settings, ingested: Set[str], *, vin: str = "", seqs: Set[int] = frozenset()) -> RecordedInArchive:
    """What the archive holds of a vehicle, or how entries of triggers ended, without the segments `ingested` (their paths)."""
    found = RecordedInArchive()
    if vin:
        for seq, trigger in _triggers(settings, ingested, vin):
            if vin in trigger.ids:
                found.triggers.append((seq, trigger))
    for envelope in _messages(settings, ingested, Stream.OUTCOME, {vin} if vin else set(map(str, seqs))):
        with contextlib.suppress(ValueError):  # the ingest puts it into quarantine
            record = OutcomeRecord.from_wire(envelope.payload)
            if vin or record.seq in seqs:
                found.outcomes.setdefault((record.vin, record.seq), record)  # the first word counts
    return found


def triggers_recorded(settings: Settings, ingested: Set[str], request_id: str, bounds: Bounds) -> dict[int, RecordedTrigger]:
    """The newest triggers of a request_id by seq, one more than a page has; the same of the archive's segments not `ingested`.

    However many there are, no more than `bounds.entries` VINs are kept, beside those of one trigger.
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
    """The accepted triggers whose bytes may hold this name, with their seqs."""
    for envelope in _messages(settings, ingested, Stream.TRIGGER, {name}):
        trigger = _trigger(settings, envelope)
        if trigger is not None:
            yield envelope.seq, trigger


def _trigger(settings: Settings, envelope: Envelope) -> Trigger | None:
    """The trigger in a message; None if it is none."""
    limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
    inline = inline_encoding(envelope.headers, settings.inline_encoding)
    trigger = parse_trigger(envelope.payload, **limits, inline=inline)
    return trigger if isinstance(trigger, Trigger) else None


def _messages(settings: Settings, ingested: Set[str], stream: Stream, names: Set[str]) -> Iterator[Envelope]:
    """The messages that may hold one of `names`, a few segments at a time."""
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    segments = archive.segments(Interval(now - BACK, now + BACK)) if names else []
    paths = [segment.path for segment in segments if segment.stream is stream and segment.path not in ingested]
    with ThreadPoolExecutor(READERS, "segments") as pool:
        for some in _in_groups(paths):
            yield from chain.from_iterable(pool.map(partial(_read, archive, names), some))


def _in_groups(paths: list[str]) -> Iterator[list[str]]:
    return (paths[start : start + READERS] for start in range(0, len(paths), READERS))


def data_recorded(settings: Settings, ingested: Set[str], data_id: str) -> Iterator[tuple[int, datetime, bytes]]:
    """(seq, received at, bytes) of every message that published it and is in no segment of `ingested`: data, or inline."""
    for envelope in not_ingested(settings, ingested, Stream.DATA, lambda rows: pc.equal(rows["topic"], data_topic(data_id))):
        yield envelope.seq, envelope.received_at, envelope.payload
    if len(data_id) != len(sha1_hex(b"")):
        return  # inline data has no other name
    for envelope in not_ingested(settings, ingested, Stream.TRIGGER, lambda rows: _hold(rows["payload"], ['"data"'])):
        trigger = _trigger(settings, envelope)
        if trigger is not None and trigger.data is not None and trigger.data_id == data_id:
            yield envelope.seq, envelope.received_at, trigger.data


def not_ingested(settings: Settings, ingested: Set[str], stream: Stream, choose: Choose) -> Iterator[Envelope]:
    """The accepted messages that `choose` picks from each of the segments not `ingested` (their paths).

    Repeated triggers are among them.
    """
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    for segment in archive.segments(Interval(now - BACK, now + BACK)):
        if segment.stream is not stream or segment.path in ingested:
            continue
        try:
            messages = decode(segment.path, archive.read(segment.path)).messages
        except (Unreadable, FileNotFoundError):  # the ingest says what is wrong with it
            continue
        yield from (envelope for envelope in from_arrow(messages.filter(choose(messages))) if envelope.refused_because is None)


def _read(archive: Archive, names: Set[str], path: str) -> list[Envelope]:
    """The messages of a segment that were accepted and hold one of `names`, and perhaps some others."""
    try:
        messages = decode(path, archive.read(path)).messages
    except (Unreadable, FileNotFoundError):  # the ingest says what is wrong with it
        return []
    found = from_arrow(messages.filter(_hold(messages["payload"], names)) if len(names) <= MAX_NAMES else messages)
    return [envelope for envelope in found if envelope.refused_because is None and envelope.duplicate_of is None]


def _hold(payloads: pa.ChunkedArray, names: Iterable[str]) -> pa.ChunkedArray:
    """Which payloads hold one of `names`, or a backslash: with it, JSON can spell any name in another way. Parses nothing."""
    return pc.match_substring_regex(payloads, "|".join([r"\\", *map(re.escape, names)]))
