"""The archive's segments: which there are, what each holds, and how one is read. No Spark: the workers read with this too."""

import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from adapters.storage import open_storage, write_bytes, write_parquet
from contracts.envelope import Stream, hour_folder
from contracts.errors import Permanent, Retryable
from contracts.seq import MAX_SEQ, datetime_of, node_of
from contracts.settings import Settings
from contracts.storage import AWS, S3
from pipelines.archive.content import Unreadable, own_seq
from pipelines.archive.formats import PARQUET, SUFFIXES, check_columns, decode

SMALLEST_FILE = 12  # bytes: the magic word twice and the length of the footer
PROBES_AT_ONCE = 16
MOST_HOURS = 12  # a longer interval is listed day by day, rather than hour by hour
MOST_DAYS = 31  # of a still longer one it is listed first which days there are
AT_ONCE = 20_000  # segments that a walk through the archive has in its hands
DAY, HOUR = "dt=%Y-%m-%d", "/hour=%H"  # folders of a stream, as `contracts.envelope` lays them out
AHEAD = timedelta(days=1)  # a recorder's clock may be wrong
_NAME = re.compile(r"(\d{1,19})-(\d{1,4})\.parquet")
_HOUR = re.compile(r"dt=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/")
_DAY = re.compile(r"dt=\d{4}-\d{2}-\d{2}")
_RFC_3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})")
_REPLAY = ".replay"


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
        return own_seq(self.path)

    @property
    def began_at(self) -> datetime | None:
        """When it began, as its path says; None where that says nothing."""
        return began_at(self.path)

    @property
    def age(self) -> tuple[datetime, str]:
        """By which segments are put in order: when it began, or was put there."""
        return self.began_at or self.modified_at, self.path

    @property
    def is_replay(self) -> bool:
        """Whether it brings refused messages once more, which have their seqs from the first time."""
        return is_replay(self.path)


def claimed_node(path: str, first: int, last: int) -> int | None:
    """The recorder of whose seqs alone the segment says to be; None where its name, and the seqs around it, do not say so.

    `{smallest seq}-{node}.parquet` is the name that recorders give. What is in between is seen when the segment is read.
    """
    name = _NAME.fullmatch(PurePosixPath(path).name)
    if name is None or int(name[1]) != first:
        return None
    node = int(name[2])
    return node if node == node_of(first) == node_of(last) else None


def began_at(path: str) -> datetime | None:
    """The instant (UTC) of the first seq, or the instant, that the file name says; else of the hour's folder; None without any.

    The path alone decides: by this instant a segment's row is found in `ingested_segments`.
    """
    name = PurePosixPath(path).name
    seq, instant, hour = _NAME.fullmatch(name), _RFC_3339.search(name), _HOUR.search(path)
    if seq and int(seq[1]) <= MAX_SEQ:
        return datetime_of(int(seq[1]))
    said = instant[0] if instant else f"{hour[1]}T{hour[2]}:00:00+00:00" if hour else ""
    try:
        return datetime.fromisoformat(said).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_replay(path: str) -> bool:
    """Whether the segment at `path` was written by a replay of quarantined messages."""
    return PurePosixPath(path).name.removesuffix(PARQUET).endswith(_REPLAY)


def replay_path(stream: Stream, seq: int, node: int, now: datetime) -> str:
    """Where the replay of one message lies: in the hour in which it is replayed, so that scheduled runs find it."""
    return f"{hour_folder(stream, now)}/{seq}-{node}{_REPLAY}{PARQUET}"


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

    def folders(self) -> Iterator[str]:
        """The folders of a stream that it touches: hours, or days where those are many, because each is a request."""
        long = self.end - self.start > timedelta(hours=MOST_HOURS)
        step, name = (timedelta(days=1), DAY) if long else (timedelta(hours=1), DAY + HOUR)
        at = self.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        at = at.replace(hour=0) if long else at
        while at < self.end:
            yield at.strftime(name)
            at += step


def recent(settings: Settings, now: datetime) -> Interval:
    """What a scheduled ingest looks at: not an interval since the last run, because after a pause nobody would take the rest."""
    return Interval(now - timedelta(days=settings.ingest_window_days), now + AHEAD)


Part = Interval | Sequence[Segment] | None  # of the archive: what began in an interval, these segments, or all of it


@dataclass(frozen=True, slots=True)
class Probe:
    """What a segment holds, by its footer; `problem` where it is no segment."""

    messages: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    problem: str | None = None
    derived: bool = False  # its seqs follow from its path


class Archive:
    """An archive below `url`: `file://…` or `s3://…`. Opening it touches nothing; it can be sent to workers."""

    def __init__(self, url: str, s3: S3 = AWS) -> None:
        self.url = url
        self._fs, self._root = open_storage(url, s3)

    def segments(self, interval: Interval | None = None) -> list[Segment]:
        """Every whole segment, or those that began in `interval`, by path. Files that begin with `.` or `_` are unfinished.

        Raises:
            Permanent: a file lies where the archive has a folder.
            Retryable: the storage cannot be read.
        """
        return sorted(segment for group in self.walk(interval) for segment in group)

    def walk(self, interval: Interval | None = None, *, newest_first: bool = False) -> Iterator[list[Segment]]:
        """The same some at a time, each group by age: what lies in folders of days, day by day, and before it all that does not.

        An archive of years has more segments than a process should have in its memory.
        """
        groups = self._groups(interval, newest_first=newest_first)
        while True:
            try:
                group = next(groups, None)
            except NotADirectoryError as exc:
                raise Permanent(f"in the archive {self.url} a file lies where a folder should be; move it away: {exc}") from exc
            except OSError as exc:
                remedy = "see that it is there, and that MANIFOLD_ARCHIVE_URL and MANIFOLD_S3_… name it"
                raise Retryable(f"the archive {self.url} cannot be read: {exc}; {remedy}") from exc
            if group is None:
                return
            yield sorted(group, key=lambda segment: segment.age, reverse=newest_first)

    def find(self, paths: Iterable[str]) -> list[Segment]:
        """The segments at these paths, as far as they are there."""
        with ThreadPoolExecutor(PROBES_AT_ONCE, "find") as pool:
            return [segment for found in pool.map(lambda path: list(self._list(path)), paths) for segment in found]

    def present(self, paths: Iterable[str]) -> set[str]:
        """Those of these paths at which a file lies. Many of one day cost one listing."""
        wanted = set(paths)
        folders = {"/".join(path.split("/")[:2]) for path in wanted if path.count("/") > 1}
        listed = {segment.path for folder in sorted(folders) for segment in self._list(folder)} & wanted
        single = [path for path in wanted if path.count("/") <= 1]
        return listed | {segment.path for segment in self.find(single)}

    def read(self, path: str) -> bytes:
        """The bytes of one file, as they lie there.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        with self._fs.open_input_stream(f"{self._root}/{path}", compression=None) as stream:
            return bytes(stream.read())

    def exists(self, path: str) -> bool:
        """Whether the file is still there."""
        return bool(self._fs.get_file_info(f"{self._root}/{path}").type == fs.FileType.File)

    def remove(self, path: str) -> None:
        """Delete one file; nothing happens if it is gone already."""
        if self.exists(path):
            self._fs.delete_file(f"{self._root}/{path}")

    def probe(self, segments: Iterable[Segment]) -> list[Probe]:
        """What each segment holds, in their order; reads little more than the footers."""
        with ThreadPoolExecutor(PROBES_AT_ONCE, "probe") as pool:
            return list(pool.map(self._probe, segments))

    def seqs(self, path: str) -> Sequence[int]:
        """The seqs of one segment, in its order.

        Raises:
            Unreadable: it is none.
        """
        if path.endswith(PARQUET):
            with self._fs.open_input_file(f"{self._root}/{path}") as file:
                try:
                    return pq.read_table(file, columns=["seq"])["seq"].cast(pa.int64()).to_numpy().tolist()  # type: ignore[no-any-return]
                except (pa.ArrowException, OSError, KeyError):
                    pass  # without such a column, or broken: reading the whole file tells
        return list(map(int, decode(path, self.read(path)).seqs))

    def put(self, path: str, table: pa.Table) -> None:
        """Write a segment, whole or not at all, under a path that is new."""
        write_parquet(self._fs, self._root, path, table)

    def replace(self, path: str, content: pa.Table | bytes) -> None:
        """Put other content in a segment's place, whole or not at all. Only an erasure does so: segments never change."""
        write = write_bytes if isinstance(content, bytes) else write_parquet
        write(self._fs, self._root, path, content)

    def _groups(self, interval: Interval | None, *, newest_first: bool) -> Iterator[list[Segment]]:
        dated, others = self._folders(interval)
        group: list[Segment] = []
        for places in (others, *([f"{s}/{folder}" for s in Stream] for folder in sorted(dated, reverse=newest_first))):
            found = (segment for place in places for segment in self._list(place))
            group += [segment for segment in found if interval is None or interval.holds(segment)]
            if len(group) >= AT_ONCE or (group and places is others):
                yield group
                group = []
        if group:
            yield group

    def _folders(self, interval: Interval | None) -> tuple[list[str], list[str]]:
        """Folders of the streams for what may be in the interval: hours or days; and whatever others have named as they like."""
        dated, others = set[str](), []
        few = interval is not None and interval.end - interval.start <= timedelta(days=MOST_DAYS)
        if interval is not None and few:
            dated.update(interval.folders())
        for stream in Stream:
            for info in self._fs.get_file_info(fs.FileSelector(f"{self._root}/{stream}", allow_not_found=True)):
                name = info.base_name
                if info.type == fs.FileType.File or not _DAY.fullmatch(name):
                    others += [info.path.removeprefix(f"{self._root}/")] if not name.startswith((".", "_")) else []
                elif interval is None or (not few and f"{interval.start:{DAY}}" <= name <= f"{interval.end:{DAY}}"):
                    dated.add(name)
        return sorted(dated), others

    def _list(self, folder: str) -> Iterator[Segment]:
        """The segments in a folder and below; or the one that this is."""
        stream, at = Stream(folder.split("/")[0]), f"{self._root}/{folder}"
        whole = folder.endswith(SUFFIXES)
        for info in self._fs.get_file_info([at] if whole else fs.FileSelector(at, recursive=True, allow_not_found=True)):
            wanted = info.base_name.endswith(SUFFIXES) and not info.base_name.startswith((".", "_"))
            if wanted and info.type == fs.FileType.File:
                yield Segment(info.path.removeprefix(f"{self._root}/"), stream, info.size, info.mtime.astimezone(UTC))

    def _probe(self, segment: Segment) -> Probe:
        if not segment.path.endswith(PARQUET):
            return self._probe_whole(segment)
        if segment.size < SMALLEST_FILE:
            return Probe(problem=f"{segment.size} bytes are no Parquet file")
        with self._fs.open_input_file(f"{self._root}/{segment.path}") as file:
            try:
                metadata = pq.ParquetFile(file).metadata
                schema = metadata.schema.to_arrow_schema()
                check_columns(schema)
                if metadata.num_rows == 0:
                    return Probe()
                if "seq" in schema.names:
                    return Probe(metadata.num_rows, *_seq_range(metadata, file))
            except Unreadable as exc:
                return Probe(problem=str(exc))
            except (pa.ArrowException, OSError) as exc:
                reason = exc
            else:
                return self._probe_whole(segment)
        probe = self._probe_whole(segment)
        if probe.problem is None:  # storage that fails now and then must not make a segment look broken
            raise reason
        return probe

    def _probe_whole(self, segment: Segment) -> Probe:
        """By its content, where no footer tells."""
        try:
            content = decode(segment.path, self.read(segment.path))
        except Unreadable as exc:
            return Probe(problem=str(exc))
        seqs = content.seqs
        first, last = (int(seqs.min()), int(seqs.max())) if len(seqs) else (None, None)
        return Probe(content.messages.num_rows, first, last, derived=content.derived)


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
