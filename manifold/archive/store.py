"""The archive's storage: lists, reads and writes segments. No Spark, although Spark's workers use it too."""

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

from manifold.archive.ignored_files import log_ignored_file
from manifold.archive.segment import Interval, Segment, day_folder
from manifold.contracts.archive_files import SUFFIXES, is_data_file, is_finished
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.storage import AWS, S3
from manifold.lake.storage import open_storage, write_bytes, write_parquet

MAX_CONCURRENT_READS = 16  # files that are read at the same time
MAX_DAYS = 31  # of a longer interval, only the day folders that exist are listed, because each listing takes a request
SEGMENT_BATCH_SIZE = 20_000  # once a group of a walk has this many segments, the next day folder begins a new group
_DAY = re.compile(r"dt=\d{4}-\d{2}-\d{2}")


class Archive:
    """The archive at `url`, which is `file://…` or `s3://…`.

    The constructor does no I/O. The object can be pickled, so that it can be sent to Spark's workers.
    """

    def __init__(self, url: str, s3: S3 = AWS) -> None:
        self.url = url
        self._fs, self._root = open_storage(url, s3)

    def segments(self, interval: Interval | None = None) -> list[Segment]:
        """List the segments that began in `interval` (None: all segments), sorted by path.

        Files whose names begin with a dot or an underscore are unfinished, and are left out.

        Raises:
            Permanent: a file is in the place of a folder of the archive.
            Retryable: the storage cannot be read.
        """
        return sorted(segment for group in self.walk(interval) for segment in group)

    def walk(self, interval: Interval | None = None, *, newest_first: bool = False) -> Iterator[list[Segment]]:
        """Yield the same segments as `segments` in groups, because an archive of years has too many for the memory of a process.

        The first group has the files outside of day folders. The following groups have the files of one or more days, in the
        order of days. Within a group, the segments are sorted by age. Both orders begin with the oldest; with `newest_first`,
        with the newest.

        Raises:
            Permanent: a file is in the place of a folder of the archive.
            Retryable: the storage cannot be read.
        """
        groups = self._groups(interval, newest_first=newest_first)
        while True:
            try:  # around the listing only, not around the work of the caller
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
        """Yield the segments in this folder of a stream and below; or, if `folder` is the path of a file, this segment.

        Raises:
            OSError: the storage failed.
        """
        stream = Stream(folder.split("/")[0])
        for file in self._files(folder):
            if is_data_file(file.path):
                yield Segment(file.path, stream, file.size, file.modified_at)
            elif is_finished(file.path):
                log_ignored_file(self.url, file.path, f"its name ends in none of {', '.join(SUFFIXES)}")

    def days(self, stream: Stream) -> list[str]:
        """The names of a stream's day folders (such as `dt=2026-03-01`), unordered.

        Raises:
            OSError: the storage failed.
        """
        return [name for name, _ in self._entries(stream) if _DAY.fullmatch(name)]

    def find(self, paths: Iterable[str]) -> list[Segment]:
        """Return the segments at these paths, without the paths at which there is none."""
        with ThreadPoolExecutor(MAX_CONCURRENT_READS, "find") as pool:
            listings = pool.map(lambda path: list(self.listed(path)), paths)
            return [segment for listing in listings for segment in listing]

    def present(self, paths: Iterable[str]) -> set[str]:
        """Return the paths at which a segment exists.

        Paths with a folder below the stream's folder are looked up by listing that folder once, so many paths of the same day
        take only one listing.
        """
        wanted = set(paths)
        outside_folders = {path for path in wanted if path.count("/") <= 1}  # `<stream>/<file>`
        folders = {"/".join(path.split("/")[:2]) for path in wanted - outside_folders}  # `<stream>/<folder>`
        listed = {segment.path for folder in sorted(folders) for segment in self.listed(folder)}
        found = {segment.path for segment in self.find(outside_folders)}
        return (listed & wanted) | found

    def read(self, path: str) -> bytes:
        """Read a file.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        with self._fs.open_input_stream(f"{self._root}/{path}", compression=None) as stream:
            return bytes(stream.read())

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random access.

        Raises:
            OSError: the storage failed, or the file is gone.
        """
        return self._fs.open_input_file(f"{self._root}/{path}")

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return bool(self._fs.get_file_info(f"{self._root}/{path}").type == fs.FileType.File)

    def remove(self, path: str) -> None:
        """Delete a file, if it exists."""
        if self.exists(path):
            self._fs.delete_file(f"{self._root}/{path}")

    def put(self, path: str, table: pa.Table) -> None:
        """Write a segment to a new path, atomically."""
        write_parquet(self._fs, self._root, path, table)

    def replace(self, path: str, content: pa.Table | bytes) -> None:
        """Replace the content of a segment, atomically. Only an erasure may do this: segments never change otherwise."""
        write = write_bytes if isinstance(content, bytes) else write_parquet
        write(self._fs, self._root, path, content)

    def _files(self, folder: str) -> Iterator["_File"]:
        """Yield the file at this path, or all files below it.

        In a local folder, links are skipped, so that each file is found at one path only.

        Raises:
            OSError: the storage failed.
        """
        if isinstance(self._fs, fs.LocalFileSystem):
            yield from _local_files(self.url, Path(self._root), folder)
            return
        full_path = f"{self._root}/{folder}"
        is_folder = True
        if folder.lower().endswith(SUFFIXES):
            infos = self._fs.get_file_info([full_path])
            is_folder = infos[0].type == fs.FileType.Directory  # a folder may have the suffix of a file, such as those of Spark
        if is_folder:
            infos = self._fs.get_file_info(fs.FileSelector(full_path, recursive=True, allow_not_found=True))
        for info in infos:
            if info.type == fs.FileType.File:
                yield _File(info.path.removeprefix(f"{self._root}/"), info.size, info.mtime.astimezone(UTC))

    def _entries(self, stream: Stream) -> Iterator[tuple[str, bool]]:
        """Yield the names of the entries in a stream's folder, and whether each is a folder.

        Raises:
            OSError: the storage failed.
        """
        full_path = f"{self._root}/{stream}"
        if not isinstance(self._fs, fs.LocalFileSystem):
            for info in self._fs.get_file_info(fs.FileSelector(full_path, allow_not_found=True)):
                yield info.base_name, info.type == fs.FileType.Directory
            return
        if not Path(full_path).exists():
            return
        for entry in os.scandir(full_path):
            if _is_usable(self.url, entry, f"{stream}/{entry.name}"):
                yield entry.name, entry.is_dir()

    def _groups(self, interval: Interval | None, *, newest_first: bool) -> Iterator[list[Segment]]:
        """Yield the segments in the groups of `walk`, unsorted."""
        dated_folders, other_paths = self._folders(interval)
        outside_days = self._selected(other_paths, interval)
        if outside_days:
            yield outside_days
        group: list[Segment] = []
        for folder in sorted(dated_folders, reverse=newest_first):
            group += self._selected([f"{stream}/{folder}" for stream in Stream], interval)
            if len(group) >= SEGMENT_BATCH_SIZE:
                yield group
                group = []
        if group:
            yield group

    def _selected(self, paths: Iterable[str], interval: Interval | None) -> list[Segment]:
        """The segments at these paths and below that began in the interval."""
        segments = (segment for path in paths for segment in self.listed(path))
        return [segment for segment in segments if interval is None or interval.contains(segment)]

    def _folders(self, interval: Interval | None) -> tuple[list[str], list[str]]:
        """The folders and files in which segments of the interval may be.

        Returns the names of day or hour folders, which all streams have in common, and the paths of all files and folders with
        other names.
        """
        day_folders: set[str] = set()
        other_paths: list[str] = []
        for stream in Stream:
            for name, is_folder in self._entries(stream):
                if is_folder and _DAY.fullmatch(name):
                    day_folders.add(name)
                elif is_finished(name):
                    other_paths.append(f"{stream}/{name}")
        if interval is None:
            return sorted(day_folders), other_paths
        if interval.end - interval.start <= timedelta(days=MAX_DAYS):
            return sorted(set(interval.folders())), other_paths  # folders that do not exist are listed as empty
        first, last = day_folder(interval.start), day_folder(interval.end)
        return sorted(day for day in day_folders if first <= day <= last), other_paths


@dataclass(frozen=True, slots=True)
class _File:
    path: str  # below the archive's root
    size: int  # bytes
    modified_at: datetime


def _local_files(url: str, root: Path, path: str) -> Iterator[_File]:
    """Yield the file at `path` (below `root`), or all usable files below it."""
    full_path = root / path
    if full_path.is_symlink():
        return
    if full_path.is_file():
        yield _file(path, full_path.stat())
        return
    folders = [path] if full_path.is_dir() else []
    while folders:
        folder = folders.pop()
        for entry in sorted(os.scandir(root / folder), key=lambda entry: entry.name):
            entry_path = f"{folder}/{entry.name}"
            if not _is_usable(url, entry, entry_path):
                continue
            if entry.is_dir():
                folders.append(entry_path)
                continue
            with suppress(FileNotFoundError):  # the file may have been deleted after it was listed
                yield _file(entry_path, entry.stat())


def _file(path: str, stat: os.stat_result) -> _File:
    return _File(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))


def _is_usable(url: str, entry: os.DirEntry[str], path: str) -> bool:
    """Whether the entry is a file or folder, not a link, with a name in UTF-8. Other entries are logged as ignored."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        log_ignored_file(url, ascii(path), "its name is not UTF-8")
        return False
    if entry.is_symlink():
        log_ignored_file(url, path, "it is a link")
        return False
    if not entry.is_file() and not entry.is_dir():  # reading a pipe would wait for its writer
        log_ignored_file(url, path, "it is neither a file nor a folder")
        return False
    return True
