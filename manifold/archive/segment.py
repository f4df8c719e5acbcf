"""Segments, with the facts that follow from their paths; intervals and selections of segments. No I/O."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

from manifold.archive.content import quarantine_seq
from manifold.contracts.archive_files import PARQUET
from manifold.contracts.envelope import Stream, hour_folder
from manifold.contracts.seq import MAX_SEQ, datetime_of, node_of
from manifold.settings import Settings

MAX_HOURS = 12  # a longer interval is listed day by day instead of hour by hour
AHEAD = timedelta(days=1)  # how far the clocks of recorders, by which segments are named, may be ahead of the clock of an ingest
_NAME = re.compile(r"(\d{1,19})-(\d{1,4})\.parquet")
_HOUR = re.compile(r"dt=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})")
_REPLAY = ".replay"


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A data file of the archive."""

    path: str  # below the archive's root
    stream: Stream
    size: int  # bytes
    modified_at: datetime  # according to the storage

    @property
    def quarantine_seq(self) -> int:
        """The negative seq under which the file is quarantined if it is not a valid segment."""
        return quarantine_seq(self.path)

    @property
    def began_at(self) -> datetime | None:
        """When the segment began, according to its path; None if the path contains no instant."""
        return began_at(self.path)

    @property
    def age(self) -> tuple[datetime, str]:
        """The sort key of segments, oldest first: when the segment began or, if that is unknown, when it was stored."""
        return self.began_at or self.modified_at, self.path

    @property
    def is_replay(self) -> bool:
        """Whether the segment holds replayed messages, which keep their original seqs."""
        return is_replay(self.path)


def claimed_node(path: str, first: int, last: int) -> int | None:
    """The number of the recorder that, according to the file name, assigned all seqs of the segment.

    Recorders name segments `{first seq}-{node}.parquet`. Returns None if the file has another kind of name, or if the name does
    not agree with the segment's `first` and `last` seq. The seqs between these two are checked when the segment is read.
    """
    name = _NAME.fullmatch(PurePosixPath(path).name)
    if name is None:
        return None
    named_seq, node = int(name[1]), int(name[2])
    is_consistent = named_seq == first and node == node_of(first) == node_of(last)
    return node if is_consistent else None


def began_at(path: str) -> datetime | None:
    """When a segment began (UTC), according to its path.

    This is the time in the seq in the file name, else the instant in the file name, else the hour of the folder, else None. It
    must depend on the path only, because the segment's row in `ingested_segments` is looked up by it.
    """
    name = PurePosixPath(path).name
    recorder_name = _NAME.fullmatch(name)
    if recorder_name is not None:
        first_seq = int(recorder_name[1])
        if first_seq <= MAX_SEQ:  # else the number is no seq, and only the folder can tell
            return datetime_of(first_seq)
    if instant := _RFC_3339.search(name):
        text = instant[0]
    elif hour := _HOUR.search(path):
        text = f"{hour[1]}T{hour[2]}:00:00+00:00"
    else:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # it only looks like an instant, such as one of a 13th month
        return None


def is_replay(path: str) -> bool:
    """Whether the segment at `path` was written by a replay of quarantined messages."""
    return PurePosixPath(path).name.removesuffix(PARQUET).endswith(_REPLAY)


def replay_path(stream: Stream, seq: int, node: int, now: datetime) -> str:
    """The path of the segment with a replayed message. It is in the folder of the current hour, which scheduled runs read."""
    return f"{hour_folder(stream, now)}/{seq}-{node}{_REPLAY}{PARQUET}"


def day_folder(instant: datetime) -> str:
    """The name of the day folder for `instant`, by its day in UTC; the layout is that of `manifold.contracts.envelope`."""
    return f"dt={instant.astimezone(UTC).date().isoformat()}"  # isoformat, because strftime omits leading zeros of the year


@dataclass(frozen=True, slots=True)
class Interval:
    """Selects the segments that began at or after `start` and before `end`."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if not (_has_utc_form(self.start) and _has_utc_form(self.end)) or self.start >= self.end:
            raise ValueError(
                f"from {self.start} to {self.end} is not an interval; both need a time zone and lie in the years 1 to 9999 of "
                "UTC, and from must come first"
            )

    def contains(self, segment: Segment) -> bool:
        """Whether the segment began in the interval. A segment without a known start is in no interval."""
        began_at = segment.began_at
        return began_at is not None and self.start <= began_at < self.end

    def folders(self) -> Iterator[str]:
        """Yield the paths, below a stream's folder, of all hour folders that the interval overlaps.

        For an interval longer than `MAX_HOURS`, yield day folders instead, because listing a folder takes a request.
        """
        by_day = self.end - self.start > timedelta(hours=MAX_HOURS)
        step = timedelta(days=1) if by_day else timedelta(hours=1)
        first = self.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if by_day:
            first = first.replace(hour=0)
        # The number of steps from `first` to `end`, rounded up: `//` rounds down, and the quotient of the negative distance is
        # negated. A loop until `end` could exceed the year 9999.
        step_count = -((first - self.end) // step)
        for number in range(step_count):
            start = first + number * step
            yield day_folder(start) if by_day else f"{day_folder(start)}/hour={start:%H}"


def _has_utc_form(instant: datetime) -> bool:
    """Whether the instant has a time zone, and can be represented in UTC."""
    if instant.tzinfo is None:
        return False
    try:
        instant.astimezone(UTC)
    except OverflowError:
        return False
    return True


def recent(settings: Settings, now: datetime) -> Interval:
    """The interval of a scheduled ingest: the last `ingest_window_days` days.

    It does not start at the last run, so that segments which arrive late, or after a pause of the schedule, are found too.
    """
    return Interval(now - timedelta(days=settings.ingest_window_days), now + AHEAD)


# A part of the archive: the segments of an interval, a list of segments, or (None) all segments.
Selection = Interval | Sequence[Segment] | None
