"""Rows as an ingest writes them, appended to the lake's main."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog

from manifold.contracts.messages import sha1_hex
from manifold.contracts.tables import DATA, META, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.settings import Settings


def new_lake(settings: Settings) -> Catalog:
    """The catalog of a lake with all its tables, empty."""
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    return catalog


def append(catalog: Catalog, table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows; omitted columns are null."""
    complete = [{c.name: row.get(c.name) for c in table.columns} for row in rows]
    catalog.load_table(table.identifier).append(pa.Table.from_pylist(complete, schema=table.arrow_schema))


def add(catalog: Catalog, table: Table, *rows: Mapping[str, Any]) -> None:
    """Append rows to a table whose columns may differ from its definition: missing values are null, unknown columns dropped."""
    loaded = catalog.load_table(table.identifier)
    columns = loaded.schema().column_names
    complete = [{column: row.get(column) for column in columns} for row in rows]
    loaded.append(pa.Table.from_pylist(complete, schema=loaded.schema().as_arrow()))


def append_payloads(catalog: Catalog, payloads: Mapping[str, bytes], *, at: datetime, seq: int = 1) -> None:
    """Append payloads by data_id, each seen once, with seqs from `seq` on; index their locations too."""
    named = [
        {"data_id": data_id, "payload": payload, "sha1": sha1_hex(payload), "size_bytes": len(payload), "seq": seq + place}
        for place, (data_id, payload) in enumerate(payloads.items())
    ]
    append(catalog, DATA, [row | {"first_seen_at": at} for row in named])
    seen = {"first_seen_at": at, "last_seen_at": at, "stored_at": at, "times_seen": 1}
    append(catalog, META, [{"data_id": row["data_id"], "sha1": row["sha1"], **seen} for row in named])


def data_files(catalog: Catalog, table: Table) -> list[Path]:
    """The files of a table on this machine, oldest day first."""
    paths = (task.file.file_path for task in catalog.load_table(table.identifier).scan().plan_files())
    return sorted((Path(path.removeprefix("file://")) for path in paths), key=lambda path: path.parent.name)


@contextmanager
def hanging(file: Path) -> Iterator[None]:
    """Make opening `file` block until the end of the block, which restores the file."""
    whole, pipe = file.with_name("whole"), file.with_name("pipe")
    file.rename(whole)
    os.mkfifo(file)
    try:
        yield
    finally:
        file.rename(pipe)
        whole.rename(file)
        os.close(os.open(pipe, os.O_RDWR))  # waiting readers notice that it is not a file
