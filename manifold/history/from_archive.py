"""Reads records that are not in the lake yet, from archive segments that are not ingested."""

import re
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

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
Choose = Callable[[pa.Table], pa.ChunkedArray]  # returns a boolean mask of the wanted messages
MAX_SEARCHED_TEXTS = 200  # up to this many texts, payloads are searched before they are parsed; else parsing all is faster


@dataclass(slots=True)
class RecordedInArchive:
    """Accepted triggers and outcomes from the archive."""

    triggers: list[tuple[int, Trigger]] = field(default_factory=list)  # each with its seq
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)  # by (vin, seq)

    def with_outcome(self, entry: EntryHistory) -> EntryHistory:
        """Return the entry with its outcome from the archive. It stays unchanged if there is none, or if it has ended already.

        A withdrawn entry may still be delivered late. In this case, the delivery replaces the withdrawal.
        """
        record = self.outcomes.get((entry.vin, entry.seq))
        if record is None:
            return entry
        is_late_delivery = record.outcome is Outcome.DELIVERED and entry.state == Outcome.WITHDRAWN
        return entry.with_outcome(record) if entry.is_open or is_late_delivery else entry


@dataclass(slots=True)
class RecordedTrigger:
    """An accepted trigger."""

    data_id: str
    vehicles: int
    vins: tuple[str, ...]  # empty if the trigger is beyond the entry limit


def read_recorded(settings: Settings, ingested: Set[str], *, vin: str = "", seqs: Set[int] = frozenset()) -> RecordedInArchive:
    """Read the triggers and outcomes of the vehicle `vin`; without `vin`, read the outcomes of the triggers `seqs`.

    With `vin`, there may also be outcomes of other vehicles. The segments whose paths are in `ingested` are not read.
    """
    recorded = RecordedInArchive()
    if vin:
        for seq, trigger in _triggers_containing(settings, ingested, vin):
            if vin in trigger.ids:  # the text may also be another part of the trigger
                recorded.triggers.append((seq, trigger))
    texts = {vin} if vin else {str(seq) for seq in seqs}
    for envelope in _messages_containing(settings, ingested, Stream.OUTCOME, texts):
        try:
            record = OutcomeRecord.from_wire(envelope.payload)
        except ValueError:  # an invalid outcome is skipped; ingest quarantines it
            continue
        if vin or record.seq in seqs:
            key = record.vin, record.seq
            earlier = recorded.outcomes.get(key)
            recorded.outcomes[key] = record.or_earlier(earlier)
    return recorded


def triggers_recorded(settings: Settings, ingested: Set[str], request_id: str, bounds: Bounds) -> dict[int, RecordedTrigger]:
    """Return by seq the newest triggers of a request_id from segments whose paths are not in `ingested`.

    If there are more triggers than `bounds.limit`, one more is returned, which shows that there is another page. At most
    `bounds.entries` VINs are kept in memory, plus those of one trigger.
    """
    triggers: dict[int, RecordedTrigger] = {}
    for seq, trigger in _triggers_containing(settings, ingested, request_id):
        # The text may also be another part of the trigger.
        if trigger.request_id != request_id or not bounds.contains(seq):
            continue
        triggers[seq] = RecordedTrigger(trigger.data_id, len(trigger.ids), trigger.ids)
        excess_seqs = sorted(triggers)[: -(bounds.limit + 1)]  # all but the newest
        for excess_seq in excess_seqs:
            del triggers[excess_seq]
        remaining_vins = bounds.entries
        for kept_seq in sorted(triggers, reverse=True):
            remaining_vins -= triggers[kept_seq].vehicles
            if remaining_vins < 0:
                triggers[kept_seq].vins = ()
    return triggers


def _triggers_containing(settings: Settings, ingested: Set[str], text: str) -> Iterator[tuple[int, Trigger]]:
    """Yield (seq, trigger) of each accepted trigger whose payload may contain this text."""
    for envelope in _messages_containing(settings, ingested, Stream.TRIGGER, {text}):
        trigger = _valid_trigger(settings, envelope)
        if trigger is not None:
            yield envelope.seq, trigger


def _valid_trigger(settings: Settings, envelope: Envelope) -> Trigger | None:
    """Parse the trigger in a message; None if it is invalid."""
    limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
    inline = inline_encoding(envelope.headers, settings.inline_encoding)
    trigger = parse_trigger(envelope.payload, **limits, inline_encoding=inline, is_release=envelope.topic == RELEASE)
    return trigger if isinstance(trigger, Trigger) else None


def _messages_containing(settings: Settings, ingested: Set[str], stream: Stream, texts: Set[str]) -> Iterator[Envelope]:
    """Yield the accepted messages that may contain one of `texts`, without duplicates, from segments not in `ingested`.

    Only `READERS` segments are in memory at a time.
    """
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    segments = archive.segments(Interval(now - UNINGESTED_WINDOW, now + AHEAD)) if texts else []
    paths = [segment.path for segment in segments if segment.stream is stream and segment.path not in ingested]

    def read(path: str) -> list[Envelope]:
        return _read_segment(archive, path, texts)

    with ThreadPoolExecutor(READERS, "segments") as pool:
        for start in range(0, len(paths), READERS):
            group = paths[start : start + READERS]
            for envelopes in pool.map(read, group):
                yield from envelopes


def data_recorded(settings: Settings, ingested: Set[str], data_id: str) -> Iterator[tuple[int, datetime, bytes]]:
    """Yield (seq, received at, payload) of every publish of this data, both on its topic and inline in triggers.

    The segments whose paths are in `ingested` are not read.
    """

    def is_on_topic(messages: pa.Table) -> pa.ChunkedArray:
        return pc.equal(messages["topic"], data_topic(data_id))

    def may_have_inline_data(messages: pa.Table) -> pa.ChunkedArray:
        return _may_contain(messages["payload"], ['"data"'])

    for envelope in uningested_messages(settings, ingested, Stream.DATA, is_on_topic):
        yield envelope.seq, envelope.received_at, envelope.payload
    may_be_sha1 = len(data_id) == len(sha1_hex(b""))
    if not may_be_sha1:  # the id of inline data is its SHA-1
        return
    for envelope in uningested_messages(settings, ingested, Stream.TRIGGER, may_have_inline_data):
        trigger = _valid_trigger(settings, envelope)
        if trigger is not None and trigger.data is not None and trigger.data_id == data_id:
            yield envelope.seq, envelope.received_at, trigger.data


def uningested_messages(settings: Settings, ingested: Set[str], stream: Stream, choose: Choose) -> Iterator[Envelope]:
    """Yield the accepted messages that `choose` selects, from segments whose paths are not in `ingested`.

    Duplicates are included.
    """
    now = datetime.now(UTC)
    archive = Archive(settings.archive, settings.s3)
    for segment in archive.segments(Interval(now - UNINGESTED_WINDOW, now + AHEAD)):
        if segment.stream is not stream or segment.path in ingested:
            continue
        try:
            messages = decode(segment.path, archive.read(segment.path)).messages
        except (Unreadable, FileNotFoundError):  # an unreadable segment is skipped; ingest reports the problem
            continue
        chosen = from_arrow(messages.filter(choose(messages)))
        yield from (envelope for envelope in chosen if envelope.refused_because is None)


def _read_segment(archive: Archive, path: str, texts: Set[str]) -> list[Envelope]:
    """Return the accepted messages of a segment that may contain one of `texts`, without duplicates."""
    try:
        messages = decode(path, archive.read(path)).messages
    except (Unreadable, FileNotFoundError):  # an unreadable segment is skipped; ingest reports the problem
        return []
    if len(texts) <= MAX_SEARCHED_TEXTS:
        messages = messages.filter(_may_contain(messages["payload"], texts))
    envelopes = from_arrow(messages)
    return [envelope for envelope in envelopes if envelope.refused_because is None and envelope.duplicate_of is None]


def _may_contain(payloads: pa.ChunkedArray, texts: Iterable[str]) -> pa.ChunkedArray:
    """Return a mask of the payloads that may contain one of `texts`, without parsing them.

    A payload with a backslash is included, because JSON can escape any character of a text.
    """
    backslash = r"\\"
    return pc.match_substring_regex(payloads, "|".join([backslash, *map(re.escape, texts)]))
