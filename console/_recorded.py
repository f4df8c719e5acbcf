"""What is recorded: read from the archive's segments where the lake has not taken them in, and by the recorder in the lake."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc

from archive.content import Unreadable
from archive.formats import decode
from archive.segment import Interval
from archive.store import Archive
from contracts.envelope import Envelope, Stream, from_arrow, inline_encoding
from contracts.lives import Batch, Bounds, Life, Page
from contracts.messages import Trigger, parse_trigger
from contracts.outcomes import OutcomeRecord
from contracts.settings import Settings

BACK = timedelta(days=1)  # how far back segments are looked for that no ingest has taken in
FLUSH_WAIT_S = 60
LAKE_WAIT_S = 30
READERS = 4  # segments that are read at once
MOST_NAMES = 200  # that a segment is searched for; looking for more takes longer than parsing all


@dataclass(slots=True)
class Recorded:
    """Triggers that were accepted, and outcomes by (vin, seq)."""

    triggers: list[tuple[int, Trigger]] = field(default_factory=list)  # with their seqs
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)


@dataclass(slots=True)
class RecordedTrigger:
    """A trigger that was accepted; `vins` is empty where more are named than were asked for."""

    data_id: str
    vehicles: int
    vins: tuple[str, ...]


def read_recorded(settings: Settings, ingested: Set[str], *, vin: str = "", seqs: Set[int] = frozenset()) -> Recorded:
    """What the archive holds of a vehicle, or how entries of triggers ended, but for the segments `ingested` (their paths)."""
    found = Recorded()
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
    limits = {"max_ids": settings.max_ids, "max_data_bytes": settings.max_data_bytes}
    for envelope in _messages(settings, ingested, Stream.TRIGGER, {name}):
        inline = inline_encoding(envelope.headers, settings.inline_encoding)
        trigger = parse_trigger(envelope.payload, **limits, inline=inline)
        if isinstance(trigger, Trigger):
            yield envelope.seq, trigger


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


def not_ingested(
    settings: Settings, ingested: Set[str], stream: Stream, *, topic: str = "", holding: str = ""
) -> Iterator[Envelope]:
    """The accepted messages of a topic, or whose payload may hold these words, of the segments not `ingested` (their paths).

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
        wanted = pc.equal(messages["topic"], topic) if topic else _hold(messages["payload"], [holding])
        yield from (envelope for envelope in from_arrow(messages.filter(wanted)) if envelope.refused_because is None)


def flush(settings: Settings) -> bool:
    """Ask every recorder to close its open segments; whether all did. Else what they hold is told by Redis alone."""
    done = [_has_flushed(url, settings.bearer) for url in settings.recorders]  # each is asked, whatever another one answers
    return all(done)


def _has_flushed(url: str, headers: dict[str, str]) -> bool:
    try:
        with urlopen(Request(f"{url}/flush", method="POST", headers=headers), timeout=FLUSH_WAIT_S):  # noqa: S310  # settings: http(s)
            return True
    except (URLError, OSError):
        return False


def lives_in_lake(settings: Settings, since: datetime, vin: str) -> tuple[list[Life], Set[str]] | None:
    """What a recorder reads in the lake: the entries of a vehicle, and the segments ingested since.

    None: it cannot be asked, or they are too many for it to tell.
    """
    told = _told(settings, "lives", since=since.isoformat(), vin=vin)
    return None if told is None else (_lives(told), set(told["ingested"]))


def page_in_lake(settings: Settings, since: datetime, request_id: str, bounds: Bounds) -> tuple[Page, Set[str]] | None:
    """The same of a page of triggers; None: the recorder cannot be asked."""
    asked = {"limit": bounds.limit, "entries": bounds.entries, "rows": bounds.rows, "before": bounds.before}
    told = _told(settings, "batches", since=since.isoformat(), request_id=request_id, since_seq=bounds.since, **asked)
    if told is None:
        return None
    batches = [Batch(**fields) for fields in told["batches"]]
    return Page(batches, told["before"], _lives(told), frozenset(told["told"])), set(told["ingested"])


def _lives(told: dict[str, Any]) -> list[Life]:
    return [Life.from_json(fields["vin"], fields) for fields in told["entries"]]


def _told(settings: Settings, what: str, **asked: str | int) -> dict[str, Any] | None:
    try:
        request = Request(f"{settings.recorders[0]}/{what}?{urlencode(asked)}", headers=settings.bearer)  # noqa: S310  # the same
        with urlopen(request, timeout=LAKE_WAIT_S) as answer:  # noqa: S310
            told: dict[str, Any] = json.load(answer)
    except (URLError, OSError, ValueError):
        return None
    return told


def _read(archive: Archive, names: Set[str], path: str) -> list[Envelope]:
    """The messages of a segment that were accepted and hold one of `names`, and perhaps some others."""
    try:
        messages = decode(path, archive.read(path)).messages
    except (Unreadable, FileNotFoundError):  # the ingest says what is wrong with it
        return []
    found = from_arrow(messages.filter(_hold(messages["payload"], names)) if len(names) <= MOST_NAMES else messages)
    return [envelope for envelope in found if envelope.refused_because is None and envelope.duplicate_of is None]


def _hold(payloads: pa.ChunkedArray, names: Iterable[str]) -> pa.ChunkedArray:
    """Which payloads hold one of `names`, or a backslash: with it, JSON can spell any name in another way. Parses nothing."""
    return pc.match_substring_regex(payloads, "|".join([r"\\", *map(re.escape, names)]))
