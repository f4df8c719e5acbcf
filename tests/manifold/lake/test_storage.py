"""A file is written completely or not at all."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from manifold.contracts.storage import AWS
from manifold.lake.storage import open_storage, write_parquet

PATH = "trigger/dt=2026-08-01/hour=12/1-3.parquet"


def write(root: Path, *values: int) -> None:
    filesystem, at = open_storage(f"file://{root}", AWS)
    write_parquet(filesystem, at, PATH, pa.table({"seq": values}))


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_is_written_whole_in_folders_created_for_it(tmp_path: Path) -> None:
    write(tmp_path / "archive", 1, 2)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "archive" / PATH]
    assert pq.read_table(tmp_path / "archive" / PATH)["seq"].to_pylist() == [1, 2]


def test_a_full_disk_leaves_the_old_file_or_none(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(OSError, match="too large"):
        write(tmp_path, 1)
    assert not (tmp_path / PATH).exists()
    write(tmp_path, 2)
    with full_disk(), pytest.raises(OSError, match="too large"):
        write(tmp_path, 3)
    assert pq.read_table(tmp_path / PATH)["seq"].to_pylist() == [2]
    assert [path.name for path in (tmp_path / PATH).parent.iterdir() if not path.name.startswith(".")] == ["1-3.parquet"]
