"""What is recorded: read from the archive's segments where the lake has not taken them in, and by the recorder in the lake."""

import contextlib
import json
import re
from collections.abc import Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.compute as pc

from contracts.envelope import Envelope, Stream, from_arrow
from contracts.lives import Life
from contracts.messages import Trigger, parse_trigger
from contracts.outcomes import OutcomeRecord
from contracts.settings import Settings
from pipelines.archive.content import Unreadable
from pipelines.archive.formats import decode
from pipelines.archive.segments import Archive, Interval

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


def read_recorded(
    settings: Settings, ingested: Set[str], *, vin: str = "", request_id: str = "", seqs: Set[int] = frozenset()
) -> Recorded:
    """What the archive holds of a vehicle or of a batch, but for the segments that were `ingested` (their paths).

    `seqs` are the batch's triggers that the lake knows: how their entries ended may be in the archive alone.
    """
    now = datetime.now(UTC)
    archive, found = Archive(settings.archive, settings.s3), Recorded()
    left = [segment for segment in archive.segments(Interval(now - BACK, now + BACK)) if segment.path not in ingested]
    with ThreadPoolExecutor(READERS, "segments") as pool:

        def read(stream: Stream, names: Set[str]) -> Iterable[Envelope]:
            paths = [segment.path for segment in left if segment.stream is stream] if names else []
            return chain.from_iterable(pool.map(partial(_read, archive, names), paths))

        for envelope in read(Stream.TRIGGER, {vin or request_id}):
            trigger = parse_trigger(envelope.payload, max_ids=settings.max_ids, max_data_bytes=settings.max_data_bytes)
            if isinstance(trigger, Trigger) and (vin in trigger.ids if vin else trigger.request_id == request_id):
                found.triggers.append((envelope.seq, trigger))
        batch = seqs | {seq for seq, _ in found.triggers}
        for envelope in read(Stream.OUTCOME, {vin} if vin else set(map(str, batch))):
            with contextlib.suppress(ValueError):  # the ingest puts it into quarantine
                record = OutcomeRecord.from_wire(envelope.payload)
                found.outcomes.setdefault((record.vin, record.seq), record)  # the first word counts
    return found


def flush(settings: Settings) -> bool:
    """Ask every recorder to close its open segments; whether all did. Else what they hold is told by Redis alone."""
    done = [_has_flushed(url) for url in settings.recorders]  # each is asked, whatever another one answers
    return all(done)


def _has_flushed(url: str) -> bool:
    try:
        with urlopen(Request(f"{url}/flush", method="POST"), timeout=FLUSH_WAIT_S):  # noqa: S310  # settings: http(s)
            return True
    except (URLError, OSError):
        return False


def lives_in_lake(settings: Settings, since: datetime, **asked: str) -> tuple[list[Life], Set[str]] | None:
    """What a recorder reads in the lake: the entries of a `vin` or a `request_id`, and the segments ingested since.

    None: it cannot be asked, or they are too many for it to tell.
    """
    query = urlencode({"since": since.isoformat(), **asked})
    try:
        with urlopen(f"{settings.recorders[0]}/lives?{query}", timeout=LAKE_WAIT_S) as answer:  # noqa: S310  # the same
            told = json.load(answer)
    except (URLError, OSError, ValueError):
        return None
    return [Life.from_json(fields["vin"], fields) for fields in told["entries"]], set(told["ingested"])


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
