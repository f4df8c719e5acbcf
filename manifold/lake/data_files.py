"""Data files of a table: several processes write them with PyArrow, and one commits them together. No Spark."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import Table
from manifold.lake.commits import MAIN, Change, patiently

GROUP_BYTES, GROUP_ROWS = "write.parquet.row-group-size-bytes", "write.parquet.row-group-limit"
CODEC, LEVEL = "write.parquet.compression-codec", "write.parquet.compression-level"
LEVELLED = ("zstd", "gzip", "brotli")  # the first is what a table has that names none
NO_HISTORY: Mapping[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}, "current_snapshot_id": None}

# PyIceberg says so of what Spark alone takes from the table's properties; the size of row groups is minded here.
warnings.filterwarnings("ignore", message="Parquet writer option")


@dataclass(frozen=True, slots=True)
class DataFiles:
    """How a table's files are written and where; can be sent to workers."""

    metadata: TableMetadata
    io: FileIO

    @classmethod
    def of(cls, table: IcebergTable, *, level: int) -> "DataFiles":
        """Those of the table as it was loaded, packed at this level of its codec. Its history is left out: it may be long.

        A codec without levels is used as it is: with one, Arrow refuses to write.
        """
        properties = table.metadata.properties
        if properties.get(CODEC, LEVELLED[0]).lower() in LEVELLED:
            properties = properties | {LEVEL: str(level)}
        else:
            properties = {name: value for name, value in properties.items() if name != LEVEL}
        return cls(table.metadata.model_copy(update={**NO_HISTORY, "properties": properties}), table.io)

    def write(self, rows: pa.Table) -> list[DataFile]:
        """The files that these rows have become, at least one for each partition. No snapshot knows them yet.

        Row groups are of about as many bytes as the table's properties ask for. PyIceberg bounds them by rows alone.

        Raises:
            OSError: the storage of the table failed.
        """
        properties = self.metadata.properties
        if rows.nbytes and GROUP_BYTES in properties:
            a_group = max(1, int(properties[GROUP_BYTES]) * rows.num_rows // rows.nbytes)
            properties = properties | {GROUP_ROWS: str(a_group)}
        told = self.metadata.model_copy(update={"properties": properties})
        files = list(_dataframe_to_data_files(told, rows, self.io)) if rows.num_rows else []
        for file in files:
            file.spec_id = self.metadata.default_spec_id
        return files

    def remove(self, files: Iterable[DataFile]) -> None:
        """Remove files that no snapshot will know. What cannot be removed is an orphan, and goes with the others."""
        for file in files:
            with suppress(OSError):
                self.io.delete(file.file_path)


@patiently
def append_files(
    catalog: Catalog, table: Table, files: Sequence[DataFile], properties: Mapping[str, str], *, branch: str = MAIN
) -> None:
    """Append files that were written for the table to a branch, as one snapshot.

    Raises:
        Retryable: the table was given other partitions since they were written.
    """
    loaded = catalog.load_table(table.identifier)
    spec = loaded.metadata.default_spec_id
    with Change(loaded) as change, change._append_snapshot_producer(dict(properties), branch=branch) as append:
        for file in files:
            if file.spec_id != spec:
                raise Retryable(f"{table.identifier} was given other partitions while rows were written; try again")
            append.append_data_file(file)
