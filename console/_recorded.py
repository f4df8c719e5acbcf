"""What is recorded: read from the archive's segments where the lake has not taken them in, and by the recorder in the lake."""

import contextlib
import json
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

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


@dataclass(slots=True)
class Recorded:
    """Triggers that were accepted, and outcomes by (vin, seq)."""

    triggers: list[tuple[int, Trigger]] = field(default_factory=list)  # with their seqs
    outcomes: dict[tuple[str, int], OutcomeRecord] = field(default_factory=dict)


def read_recorded(settings: Settings, ingested: Set[str]) -> Recorded:
    """What the archive holds, but for the segments that were `ingested` (their paths)."""
    now = datetime.now(UTC)
    archive, found = Archive(settings.archive, settings.s3), Recorded()
    for segment in archive.segments(Interval(now - BACK, now + BACK)):
        if segment.path in ingested or segment.stream is Stream.DATA:
            continue
        with contextlib.suppress(Unreadable, FileNotFoundError):  # the ingest says what is wrong with it
            _take(settings, from_arrow(decode(segment.path, archive.read(segment.path)).messages), found)
    return found


def flush(settings: Settings) -> bool:
    """Ask the recorder to close its open segments; whether it did. Else what it holds is told by Redis alone."""
    try:
        with urlopen(Request(f"http://{settings.host}:{settings.recorder_port}/flush", method="POST"), timeout=FLUSH_WAIT_S):
            return True
    except (URLError, OSError):
        return False


def lives_in_lake(settings: Settings, since: datetime, **asked: str) -> tuple[list[Life], Set[str]] | None:
    """What the recorder reads in the lake: the entries of a `vin` or a `request_id`, and the segments ingested since.

    None: it cannot be asked, or they are too many for it to tell.
    """
    query = urlencode({"since": since.isoformat(), **asked})
    try:
        with urlopen(f"http://{settings.host}:{settings.recorder_port}/lives?{query}", timeout=LAKE_WAIT_S) as answer:
            told = json.load(answer)
    except (URLError, OSError, ValueError):
        return None
    return [Life.from_json(fields["vin"], fields) for fields in told["entries"]], set(told["ingested"])


def _take(settings: Settings, envelopes: Iterable[Envelope], found: Recorded) -> None:
    for envelope in envelopes:
        if envelope.refused_because is not None or envelope.duplicate_of is not None:
            continue
        if envelope.stream is Stream.OUTCOME:
            with contextlib.suppress(ValueError):  # the ingest puts it into quarantine
                record = OutcomeRecord.from_wire(envelope.payload)
                found.outcomes.setdefault((record.vin, record.seq), record)  # the first word counts
        elif envelope.stream is Stream.TRIGGER:
            trigger = parse_trigger(envelope.payload, max_ids=settings.max_ids, max_data_bytes=settings.max_data_bytes)
            if isinstance(trigger, Trigger):
                found.triggers.append((envelope.seq, trigger))
