"""Opens a folder by its URL, on a disk or in an object store, and writes files to it durably."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from manifold.contracts.storage import S3

_S3_SCHEME = "s3://"


def open_storage(url: str, s3: S3) -> tuple[fs.FileSystem, str]:
    """Return the file system of `url` (`file://…` or `s3://bucket/…`), and the folder's path in it. Does not access the storage.

    Raises:
        ValueError: the URL is of an unknown kind.
    """
    if not url.startswith(_S3_SCHEME):
        filesystem, root = fs.FileSystem.from_uri(url)
        return filesystem, root.rstrip("/")
    options = {"region": s3.region, "access_key": s3.access_key, "secret_key": s3.secret_key}
    if s3.endpoint:
        scheme, _, address = s3.endpoint.rpartition("://")
        options |= {"endpoint_override": address, "scheme": scheme or "https"}
    nonempty = {name: value for name, value in options.items() if value}
    return fs.S3FileSystem(**nonempty), url.removeprefix(_S3_SCHEME).rstrip("/")


def write_parquet(filesystem: fs.FileSystem, root: str, path: str, table: pa.Table) -> None:
    """Write the table to `path` below `root`, atomically and durably. An existing file is replaced when the write is complete.

    Raises:
        OSError: the storage is unavailable, full, or refuses.
    """
    _write(filesystem, root, path, lambda sink: pq.write_table(table, sink, compression="zstd"))


def write_bytes(filesystem: fs.FileSystem, root: str, path: str, content: bytes) -> None:
    """Write `content` to `path` below `root`, atomically and durably. An existing file is replaced when the write is complete.

    Raises:
        OSError: the storage is unavailable, full, or refuses.
    """
    _write(filesystem, root, path, lambda sink: sink.write(content))


def _write(filesystem: fs.FileSystem, root: str, path: str, fill: Callable[[Any], object]) -> None:
    """Write a file atomically; `fill` writes its content to a stream.

    On a local disk, the content is written to a hidden file, synced, and renamed.
    """
    full_path = f"{root}/{path}"
    if not isinstance(filesystem, fs.LocalFileSystem):  # object stores are atomic: an object appears once its upload is complete
        with filesystem.open_output_stream(full_path) as sink:
            fill(sink)
        return
    final = Path(full_path)
    final.parent.mkdir(parents=True, exist_ok=True)
    hidden = final.with_name(f".{final.name}.tmp")  # readers skip names that begin with a dot
    with hidden.open("wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(final)
    for folder in Path(path).parents:  # sync every folder up to the root, because each may have been created just now
        sync_folder(Path(root, folder))


def sync_folder(folder: Path) -> None:
    """Make created and renamed files in `folder` survive a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
