"""Segments by path: stream, start and writer; and intervals and selections of segments. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from manifold.archive.content import own_seq
from manifold.contracts.archive_files import PARQUET
from manifold.contracts.envelope import Stream, hour_folder
from manifold.contracts.seq import MAX_SEQ, datetime_of, node_of
from manifold.settings import Settings

MAX_HOURS = 12  # a longer interval is listed day by day, rather than hour by hour
AHEAD = timedelta(days=1)  # how far a recorder's clock, by which its segments are named, may be ahead
_NAME = re.compile(r"(\d{1,19})-(\d{1,4})\.parquet")
_HOUR = re.compile(r"dt=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})")
_REPLAY = ".replay"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of the archive, by its path below the root."""

    path: str
    stream: Stream
    size: int  # bytes
    modified_at: datetime  # by the storage

    @property
    def own_seq(self) -> int:
        """The quarantine key of a file that is not a segment: negative, so that no message has it, and always the same."""
        return own_seq(self.path)

    @property
    def began_at(self) -> datetime | None:
        """When the segment began, by its path; None if the path does not say."""
        return began_at(self.path)

    @property
    def age(self) -> tuple[datetime, str]:
        """The sort key of segments: when it began, or when it was stored."""
        return self.began_at or self.modified_at, self.path

    @property
    def is_replay(self) -> bool:
        """Whether the segment holds replayed messages, which keep their original seqs."""
        return is_replay(self.path)


def claimed_node(path: str, first: int, last: int) -> int | None:
    """The recorder that alone should have assigned the segment's seqs; None if its name and its first and last seq disagree.

    `{smallest seq}-{node}.parquet` is the name that recorders use. The seqs in between are checked when the segment is read.
    """
    name = _NAME.fullmatch(PurePosixPath(path).name)
    if name is None or int(name[1]) != first:
        return None
    node = int(name[2])
    return node if node == node_of(first) == node_of(last) else None


def began_at(path: str) -> datetime | None:
    """When a segment began (UTC): the first seq or the instant in its file name, or the hour of its folder; None without any.

    Depends on the path alone, because the segment's row in `ingested_segments` is found by this instant.
    """
    name = PurePosixPath(path).name
    seq, instant, hour = _NAME.fullmatch(name), _RFC_3339.search(name), _HOUR.search(path)
    if seq and int(seq[1]) <= MAX_SEQ:
        return datetime_of(int(seq[1]))
    if instant is not None:
        text = instant[0]
    elif hour is not None:
        text = f"{hour[1]}T{hour[2]}:00:00+00:00"
    else:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_replay(path: str) -> bool:
    """Whether the segment at `path` was written by a replay of quarantined messages."""
    return PurePosixPath(path).name.removesuffix(PARQUET).endswith(_REPLAY)


def replay_path(stream: Stream, seq: int, node: int, now: datetime) -> str:
    """The path of one message's replay: in the hour of the replay, so that scheduled runs find it."""
    return f"{hour_folder(stream, now)}/{seq}-{node}{_REPLAY}{PARQUET}"


def day_folder(instant: datetime) -> str:
    """The folder of the day of `instant` (UTC) below a stream's, as `manifold.contracts.envelope` lays them out."""
    return f"dt={instant.astimezone(UTC).date().isoformat()}"  # unlike strftime, four digits for every year


@dataclass(frozen=True, slots=True)
class Interval:
    """Segments whose first seq was assigned at or after `start` and before `end` (UTC)."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if not (_in_utc(self.start) and _in_utc(self.end)) or self.start >= self.end:
            raise ValueError(
                f"from {self.start} to {self.end} is not an interval; both need a time zone and lie in the years 1 to 9999 of "
                "UTC, and from must come first"
            )

    def holds(self, segment: Segment) -> bool:
        """Whether the segment began in the interval; one without a known start is in none."""
        began_at = segment.began_at
        return began_at is not None and self.start <= began_at < self.end

    def folders(self) -> Iterator[str]:
        """Yield the stream folders that the interval touches: hours, or days for a long interval, since each costs a request."""
        long = self.end - self.start > timedelta(hours=MAX_HOURS)
        step = timedelta(days=1) if long else timedelta(hours=1)
        at = self.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        at = at.replace(hour=0) if long else at
        for number in range(-((at - self.end) // step)):  # counted: the end of the last step may be past the year 9999
            begins = at + number * step
            yield day_folder(begins) if long else f"{day_folder(begins)}/hour={begins:%H}"


def _in_utc(instant: datetime) -> bool:
    """Whether the instant has a time zone, and can be represented in UTC."""
    try:
        return instant.tzinfo is not None and instant.astimezone(UTC) is not None
    except OverflowError:
        return False


def recent(settings: Settings, now: datetime) -> Interval:
    """The interval of a scheduled ingest: the last days, not the time since the last run, so that a pause leaves no gap."""
    return Interval(now - timedelta(days=settings.ingest_window_days), now + AHEAD)


Selection = Interval | Sequence[Segment] | None  # of the archive: by interval, these segments, or all
