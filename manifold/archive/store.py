"""The archive's storage: lists segments and reads their bytes. Needs no Spark; Spark's workers use it too."""

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from manifold.archive.ignored_files import name_ignored
from manifold.archive.segment import Interval, Segment, day_folder
from manifold.contracts.archive_files import SUFFIXES, is_data_file, is_finished
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.storage import AWS, S3
from manifold.lake.storage import open_storage, write_bytes, write_parquet

MAX_CONCURRENT_READS = 16  # files
MAX_DAYS = 31  # longer intervals first list which days exist
SEGMENT_BATCH_SIZE = 20_000  # segments that a walk holds in memory
_DAY = re.compile(r"dt=\d{4}-\d{2}-\d{2}")


class Archive:
    """An archive below `url`: `file://…` or `s3://…`. Opening it does no I/O; it can be pickled and sent to workers."""

    def __init__(self, url: str, s3: S3 = AWS) -> None:
        self.url = url
        self._fs, self._root = open_storage(url, s3)

    def segments(self, interval: Interval | None = None) -> list[Segment]:
        """List all complete segments, or those that began in `interval`, by path. Files named `.…` or `_…` are unfinished.

        Raises:
            Permanent: a file is where the archive has a folder.
            Retryable: the storage cannot be read.
        """
        return sorted(segment for group in self.walk(interval) for segment in group)

    def walk(self, interval: Interval | None = None, *, newest_first: bool = False) -> Iterator[list[Segment]]:
        """As `segments`, in groups, each sorted by age: first the files outside of day folders, then day by day.

        An archive of several years has more segments than a process should hold in memory.
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

    def listed(self, folder: str) -> Iterator[Segment]:
        """Yield the segments in a stream's folder and below; or the one at this path.

        Raises:
            OSError: the storage failed.
        """
        stream = Stream(folder.split("/")[0])
        for file in self._files(folder):
            if is_data_file(file.path):
                yield Segment(file.path, stream, file.size, file.modified_at)
            elif is_finished(file.path):
                name_ignored(self.url, file.path, f"its name ends in none of {', '.join(SUFFIXES)}")

    def days(self, stream: Stream) -> list[str]:
        """The names of a stream's day folders (`dt=2026-03-01`), unordered.

        Raises:
            OSError: the storage failed.
        """
        return [name for name, _ in self._top(stream) if _DAY.fullmatch(name)]

    def find(self, paths: Iterable[str]) -> list[Segment]:
        """Return the segments among `paths` that exist."""
        with ThreadPoolExecutor(MAX_CONCURRENT_READS, "find") as pool:
            return [segment for found in pool.map(lambda path: list(self.listed(path)), paths) for segment in found]

    def present(self, paths: Iterable[str]) -> set[str]:
        """Return those of `paths` at which a file exists. Many of one day cost one listing."""
        wanted = set(paths)
        folders = {"/".join(path.split("/")[:2]) for path in wanted if path.count("/") > 1}
        listed = {segment.path for folder in sorted(folders) for segment in self.listed(folder)} & wanted
        single = [path for path in wanted if path.count("/") <= 1]
        return listed | {segment.path for segment in self.find(single)}

    def read(self, path: str) -> bytes:
        """Read the bytes of one file.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        with self._fs.open_input_stream(f"{self._root}/{path}", compression=None) as stream:
            return bytes(stream.read())

    def open(self, path: str) -> pa.NativeFile:
        """Open one file for random access.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        return self._fs.open_input_file(f"{self._root}/{path}")

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return bool(self._fs.get_file_info(f"{self._root}/{path}").type == fs.FileType.File)

    def remove(self, path: str) -> None:
        """Delete one file, if it exists."""
        if self.exists(path):
            self._fs.delete_file(f"{self._root}/{path}")

    def put(self, path: str, table: pa.Table) -> None:
        """Write a segment under a new path, atomically."""
        write_parquet(self._fs, self._root, path, table)

    def replace(self, path: str, content: pa.Table | bytes) -> None:
        """Replace a segment's content atomically. Only for an erasure: segments never change otherwise."""
        write = write_bytes if isinstance(content, bytes) else write_parquet
        write(self._fs, self._root, path, content)

    def _files(self, folder: str) -> Iterator["_File"]:
        """Yield the file at this path, or all files below it, each by one path: links are skipped, since their target has a path.

        Raises:
            OSError: the storage failed.
        """
        if isinstance(self._fs, fs.LocalFileSystem):
            yield from _local_files(self.url, Path(self._root), folder)
            return
        at = f"{self._root}/{folder}"
        found = self._fs.get_file_info([at]) if folder.lower().endswith(SUFFIXES) else []
        if not found or found[0].type == fs.FileType.Directory:  # Spark creates folders with file names
            found = self._fs.get_file_info(fs.FileSelector(at, recursive=True, allow_not_found=True))
        for info in found:
            if info.type == fs.FileType.File:
                yield _File(info.path.removeprefix(f"{self._root}/"), info.size, info.mtime.astimezone(UTC))

    def _top(self, stream: Stream) -> Iterator[tuple[str, bool]]:
        """Yield the names in a stream's folder, and whether each is a folder.

        Raises:
            OSError: the storage failed.
        """
        at = f"{self._root}/{stream}"
        if not isinstance(self._fs, fs.LocalFileSystem):
            for info in self._fs.get_file_info(fs.FileSelector(at, allow_not_found=True)):
                yield info.base_name, info.type == fs.FileType.Directory
            return
        if not Path(at).exists():
            return
        for entry in os.scandir(at):
            if _is_usable(self.url, entry, f"{stream}/{entry.name}"):
                yield entry.name, entry.is_dir()

    def _groups(self, interval: Interval | None, *, newest_first: bool) -> Iterator[list[Segment]]:
        dated, others = self._folders(interval)
        group: list[Segment] = []
        for places in (others, *([f"{s}/{folder}" for s in Stream] for folder in sorted(dated, reverse=newest_first))):
            found = (segment for place in places for segment in self.listed(place))
            group += [segment for segment in found if interval is None or interval.holds(segment)]
            if len(group) >= SEGMENT_BATCH_SIZE or (group and places is others):
                yield group
                group = []
        if group:
            yield group

    def _folders(self, interval: Interval | None) -> tuple[list[str], list[str]]:
        """The day or hour folders that the interval may touch, and all files and folders with other names."""
        dated, others = set[str](), []
        few, first, last = False, "", ""
        if interval is not None:
            few = interval.end - interval.start <= timedelta(days=MAX_DAYS)
            first, last = (day_folder(instant) for instant in (interval.start, interval.end))
            dated.update(interval.folders() if few else ())
        for stream in Stream:
            for name, is_folder in self._top(stream):
                if not is_folder or not _DAY.fullmatch(name):
                    others += [f"{stream}/{name}"] if is_finished(name) else []
                elif interval is None or (not few and first <= name <= last):
                    dated.add(name)
        return sorted(dated), others


@dataclass(frozen=True, slots=True)
class _File:
    path: str  # below the root
    size: int  # bytes
    modified_at: datetime


def _local_files(url: str, root: Path, path: str) -> Iterator[_File]:
    """Yield the file at `path`, or all usable files below it."""
    at = root / path
    if at.is_symlink():
        return
    if at.is_file():
        yield _file(path, at.stat())
        return
    folders = [path] if at.is_dir() else []
    while folders:
        folder = folders.pop()
        for entry in sorted(os.scandir(root / folder), key=lambda entry: entry.name):
            path = f"{folder}/{entry.name}"
            if not _is_usable(url, entry, path):
                continue
            if entry.is_dir():
                folders.append(path)
                continue
            with suppress(FileNotFoundError):  # gone since it was listed
                yield _file(path, entry.stat())


def _file(path: str, said: os.stat_result) -> _File:
    return _File(path, said.st_size, datetime.fromtimestamp(said.st_mtime, UTC))


def _is_usable(url: str, entry: os.DirEntry[str], path: str) -> bool:
    """Whether the entry has a name that is text, and is a file or a folder, and no link."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        name_ignored(url, ascii(path), "its name is not UTF-8")
        return False
    if entry.is_symlink():
        name_ignored(url, path, "it is a link")
        return False
    if not entry.is_file() and not entry.is_dir():  # reading a pipe would wait for its writer
        name_ignored(url, path, "it is neither a file nor a folder")
        return False
    return True
