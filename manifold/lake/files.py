"""A folder of small files by its URL, on a disk or in an object store: reports, and job results."""

import secrets
from collections.abc import Iterator
from pathlib import PurePosixPath

from pyarrow import fs

from manifold.contracts.storage import AWS, S3
from manifold.lake.storage import open_storage


class Files:
    """The files below `url` (`file://…` or `s3://bucket/…`), each named by its path from there. Construction touches nothing.

    Every method may raise OSError: the storage is unavailable, full, or refuses.
    """

    def __init__(self, url: str, s3: S3 = AWS) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = open_storage(url, s3)

    def address(self, path: str) -> str:
        """The file's location for people: a path on this machine's disk, else a URL."""
        return self._at(path) if isinstance(self._fs, fs.LocalFileSystem) else f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Read one file; None if it does not exist."""
        if not self.has(path):
            return None
        try:
            with self._fs.open_input_stream(self._at(path), compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:  # removed in the meantime
            return None

    def has(self, path: str) -> bool:
        """Whether the file exists."""
        return bool(self._fs.get_file_info(self._at(path)).type == fs.FileType.File)

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically, because another process may be reading the old one."""
        at = PurePosixPath(self._at(path))
        if not isinstance(self._fs, fs.LocalFileSystem):  # an object appears when its upload is complete
            self._put(str(at), content)
            return
        self._fs.create_dir(str(at.parent))
        hidden = str(at.with_name(f".{at.name}.{secrets.token_hex(4)}"))
        self._put(hidden, content)
        self._fs.move(hidden, str(at))

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below this folder, in order, without hidden ones."""
        found = self._fs.get_file_info(fs.FileSelector(self._at(folder), recursive=True, allow_not_found=True))
        paths = (info.path.removeprefix(f"{self._root}/") for info in found if info.type == fs.FileType.File)
        yield from sorted(path for path in paths if not PurePosixPath(path).name.startswith("."))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it; no effect if it is gone already."""
        try:
            match self._fs.get_file_info(self._at(path)).type:
                case fs.FileType.File:
                    self._fs.delete_file(self._at(path))
                case fs.FileType.Directory:
                    self._fs.delete_dir(self._at(path))
        except FileNotFoundError:
            pass

    def _put(self, at: str, content: bytes) -> None:
        with self._fs.open_output_stream(at, compression=None) as sink:
            sink.write(content)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"
