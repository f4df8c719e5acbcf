"""Files written outside commits equal those of PyIceberg's own append."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import META, SEGMENTS, Table
from manifold.lake.catalog import ensure_tables, open_catalog, where
from manifold.lake.data_files import read_files, write_files
from manifold.settings import Settings

NIGHT = datetime(2026, 3, 1, 23, 59, 59, 999_999, UTC)
MORNING = datetime(2026, 3, 2, tzinfo=UTC)
SEGMENT = {"path": "a", "stream": "trigger", "messages": 1, "run_id": "r", "ingested_at": NIGHT}
DAYS = [SEGMENT | {"began_at": at} for at in (NIGHT, MORNING, None, NIGHT)]
LONG = chr(0xD7FF) * 40  # its upper bound cannot be made by incrementing the last character
SEEN = {"first_seen_at": NIGHT, "last_seen_at": NIGHT, "times_seen": 1, "sha1": "0" * 40, "stored_at": NIGHT}
NAMES = [{"data_id": i, **SEEN} for i in (LONG, "d")]


def shape(file: DataFile) -> tuple[Any, ...]:
    statistics = (file.lower_bounds, file.upper_bounds, file.null_value_counts)
    return repr(file.partition), file.record_count, *(dict(each) for each in statistics)


def place(tmp_path: Path, table: Table) -> IcebergTable:
    catalog = open_catalog(Settings(home=tmp_path))
    ensure_tables(catalog)
    return catalog.load_table(table.identifier)


@pytest.mark.parametrize(("table", "rows", "files"), [(SEGMENTS, DAYS, 3), (META, NAMES, 1)], ids=["days", "no days"])
def test_files_have_the_partitions_and_bounds_of_an_append(
    tmp_path: Path, table: Table, rows: list[dict[str, Any]], files: int
) -> None:
    loaded = place(tmp_path, table)
    arrow = pa.Table.from_pylist(rows, schema=table.arrow_schema)
    made = list(write_files(loaded.metadata, arrow, loaded.io))
    loaded.append(arrow)
    appended = [task.file for task in loaded.scan().plan_files()]
    assert len(made) == files
    assert sorted(map(repr, map(shape, made))) == sorted(map(repr, map(shape, appended)))


def test_all_or_some_columns_of_single_files_are_read(tmp_path: Path) -> None:
    loaded = place(tmp_path, SEGMENTS)
    loaded.append(pa.Table.from_pylist(DAYS, schema=SEGMENTS.arrow_schema))
    tasks = list(loaded.scan().plan_files())
    assert sorted(read_files(loaded, [task], ["began_at"]).num_rows for task in tasks) == [1, 1, 2]
    assert read_files(loaded, tasks[:1]).column_names == SEGMENTS.arrow_schema.names
    assert read_files(loaded, tasks, ["path", "began_at"], where(EqualTo, "stream", "data")).num_rows == 0
