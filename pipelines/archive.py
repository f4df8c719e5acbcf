"""The archive's segments: which there are, what each holds, and how one is read. No Spark: the workers read with this too."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from contracts.envelope import SEGMENT_SCHEMA, Stream, hour_folder
from contracts.seq import MAX_SEQ, datetime_of

REQUIRED = ("seq", "received_at", "topic", "payload")
SMALLEST_FILE = 12  # bytes: the magic word twice and the length of the footer
PROBES_AT_ONCE = 16
MOST_HOURS = 24 * 31  # a longer interval is listed as a whole, rather than hour by hour
_NAME = re.compile(r"(\d{1,19})-(\d{1,4})\.parquet")
_HOUR = re.compile(r"dt=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")


class Unreadable(Exception):
    """A file in the archive is no segment; the message says why. It will not become one: segments never change."""


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of the archive, by its path below the root."""

    path: str
    stream: Stream
    size: int  # bytes
    modified_at: datetime  # as the storage says

    @property
    def own_seq(self) -> int:
        """The quarantine key of a file that is no segment: negative, so no message has it, and the same each time."""
        return -int.from_bytes(hashlib.blake2b(self.path.encode(), digest_size=7).digest()) - 1

    @property
    def began_at(self) -> datetime | None:
        """The instant of the first seq, as the file name says; else of the hour's folder; None where neither tells."""
        name = _NAME.fullmatch(PurePosixPath(self.path).name)
        if name and int(name[1]) <= MAX_SEQ:
            return datetime_of(int(name[1]))
        hour = _HOUR.search(self.path)
        try:
            return datetime.fromisoformat(f"{hour[1]}T{hour[2]}:00:00+00:00") if hour else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Interval:
    """Segments whose first seq was given at or after `start` and before `end` (UTC)."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None or self.start >= self.end:
            raise ValueError(f"from {self.start} to {self.end} is no interval; both need a time zone, and from must come first")

    def holds(self, segment: Segment) -> bool:
        """Whether the segment began in the interval; one that does not tell when it began is in none."""
        began_at = segment.began_at
        return began_at is not None and self.start <= began_at < self.end

    def hours(self) -> Iterator[datetime]:
        """The hours that the interval touches."""
        hour = self.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        while hour < self.end:
            yield hour
            hour += timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a segment holds, by its footer; `problem` where it is no segment."""

    messages: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    problem: str | None = None


class Archive:
    """An archive below `url`: `file://…` or `s3://…`. Opening it touches nothing."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, self._root = fs.FileSystem.from_uri(url)

    def segments(self, interval: Interval | None = None) -> list[Segment]:
        """Every whole segment, or those that began in `interval`, by path. Files that begin with `.` or `_` are unfinished."""
        listed = [segment for folder in self._folders(interval) for segment in self._list(folder)]
        return sorted(s for s in listed if interval is None or interval.holds(s))

    def read(self, path: str) -> bytes:
        """The bytes of one file.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        with self._fs.open_input_stream(f"{self._root}/{path}") as stream:
            return bytes(stream.read())

    def exists(self, path: str) -> bool:
        """Whether the file is still there."""
        return bool(self._fs.get_file_info(f"{self._root}/{path}").type == fs.FileType.File)

    def probe(self, segments: Iterable[Segment]) -> list[Probe]:
        """What each segment holds, in their order; reads little more than the footers."""
        with ThreadPoolExecutor(PROBES_AT_ONCE, "probe") as pool:
            return list(pool.map(self._probe, segments))

    def seqs(self, path: str) -> Sequence[int]:
        """The seqs of one segment, in its order."""
        with self._fs.open_input_file(f"{self._root}/{path}") as file:
            return pq.read_table(file, columns=["seq"])["seq"].cast(pa.int64()).to_numpy().tolist()  # type: ignore[no-any-return]

    def _folders(self, interval: Interval | None) -> list[str]:
        if interval is None or interval.end - interval.start > timedelta(hours=MOST_HOURS):
            return [stream.value for stream in Stream]
        return [hour_folder(stream, hour) for stream in Stream for hour in interval.hours()]

    def _list(self, folder: str) -> Iterator[Segment]:
        stream = Stream(folder.split("/")[0])
        for info in self._fs.get_file_info(fs.FileSelector(f"{self._root}/{folder}", recursive=True, allow_not_found=True)):
            if info.type == fs.FileType.File and info.extension == "parquet" and not info.base_name.startswith((".", "_")):
                yield Segment(info.path.removeprefix(f"{self._root}/"), stream, info.size, info.mtime.astimezone(UTC))

    def _probe(self, segment: Segment) -> Probe:
        if segment.size < SMALLEST_FILE:
            return Probe(problem=f"{segment.size} bytes are no Parquet file")
        with self._fs.open_input_file(f"{self._root}/{segment.path}") as file:
            try:
                metadata = pq.ParquetFile(file).metadata
                _check_columns(metadata.schema.to_arrow_schema())
                if metadata.num_rows == 0:
                    return Probe()
                return Probe(metadata.num_rows, *_seq_range(metadata, file))
            except (pa.ArrowException, OSError, Unreadable) as exc:
                reason = exc
        if isinstance(reason, Unreadable):
            return Probe(problem=str(reason))
        try:  # storage that fails now and then must not make a segment look broken: read it whole, or fail
            decode(self.read(segment.path))
        except Unreadable as exc:
            return Probe(problem=str(exc))
        raise reason


def decode(content: bytes) -> pa.Table:
    """The messages of a segment with the envelope's columns; columns that only Manifold's own recorder knows may be missing.

    Raises:
        Unreadable: these bytes are no segment.
    """
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole Parquet file ({_one_line(exc)})") from exc
    _check_columns(table.schema)
    try:
        columns = [_column(table, field) for field in SEGMENT_SCHEMA]
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"columns are not of the envelope's types ({_one_line(exc)})") from exc
    whole = pa.Table.from_arrays(columns, names=SEGMENT_SCHEMA.names)
    holes = [name for name in REQUIRED if whole[name].null_count]
    if holes:
        raise Unreadable(f"rows without {', '.join(holes)}")
    if whole.num_rows and min(whole["seq"].to_numpy()) < 0:
        raise Unreadable("a seq is negative")
    return whole


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name in table.schema.names:
        return table[field.name].cast(field.type)
    return pa.nulls(table.num_rows, field.type)


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise Unreadable(f"columns {', '.join(missing)} are missing")


def _seq_range(metadata: pq.FileMetaData, file: pa.NativeFile) -> tuple[int, int]:
    """Smallest and greatest seq: from the footer's statistics, or, where a writer left them out, from the column."""
    column = [metadata.schema.column(place).path for place in range(metadata.num_columns)].index("seq")
    stats = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    if all(s is not None and s.has_min_max for s in stats):
        return min(int(s.min) for s in stats), max(int(s.max) for s in stats)
    seqs = pq.read_table(file, columns=["seq"])["seq"].cast(pa.int64()).drop_null().to_numpy()
    if len(seqs) == 0:
        raise Unreadable("rows without seq")
    return int(seqs.min()), int(seqs.max())


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]
