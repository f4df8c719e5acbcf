"""A folder of small files, such as reports and job results, on a disk or in an object store."""

import secrets
from collections.abc import Iterator
from pathlib import PurePosixPath

from pyarrow import fs

from manifold.contracts.storage import AWS, S3
from manifold.lake.storage import open_storage


class Files:
    """The files below `url` (`file://…` or `s3://bucket/…`). Methods take paths relative to it.

    The constructor does not access the storage. Every method may raise OSError: the storage is unavailable or full, or it denies
    access.
    """

    def __init__(self, url: str, s3: S3 = AWS) -> None:
        self.url = url.rstrip("/")
        self._fs, self._root = open_storage(url, s3)

    def address(self, path: str) -> str:
        """The file's location, to be shown to people: a path if it is on a local disk, else a URL."""
        return self._full_path(path) if isinstance(self._fs, fs.LocalFileSystem) else f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Read one file; None if it does not exist."""
        if not self.has(path):
            return None
        try:
            with self._fs.open_input_stream(self._full_path(path), compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:  # another process removed it after the check
            return None

    def has(self, path: str) -> bool:
        """Whether the file exists."""
        return bool(self._fs.get_file_info(self._full_path(path)).type == fs.FileType.File)

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically, because another process may be reading the file that it replaces."""
        target = PurePosixPath(self._full_path(path))
        is_object_store = not isinstance(self._fs, fs.LocalFileSystem)
        if is_object_store:  # it is atomic by itself: an object appears once its upload is complete
            self._put(str(target), content)
            return
        self._fs.create_dir(str(target.parent))
        hidden = str(target.with_name(f".{target.name}.{secrets.token_hex(4)}"))
        self._put(hidden, content)
        self._fs.move(hidden, str(target))

    def below(self, folder: str) -> Iterator[str]:
        """Yield the paths of all files below this folder, sorted, without hidden files."""
        infos = self._fs.get_file_info(fs.FileSelector(self._full_path(folder), recursive=True, allow_not_found=True))
        paths = (info.path.removeprefix(f"{self._root}/") for info in infos if info.type == fs.FileType.File)
        yield from sorted(path for path in paths if not PurePosixPath(path).name.startswith("."))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. Does nothing if it does not exist."""
        full_path = self._full_path(path)
        try:
            match self._fs.get_file_info(full_path).type:
                case fs.FileType.File:
                    self._fs.delete_file(full_path)
                case fs.FileType.Directory:
                    self._fs.delete_dir(full_path)
                case _:  # there is none
                    pass
        except FileNotFoundError:  # another process removed it after the check
            pass

    def _put(self, full_path: str, content: bytes) -> None:
        with self._fs.open_output_stream(full_path, compression=None) as sink:
            sink.write(content)

    def _full_path(self, path: str) -> str:
        """The path in the file system of a path relative to the folder."""
        return f"{self._root}/{path}"
