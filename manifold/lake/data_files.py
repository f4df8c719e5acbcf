"""Reads the rows of a table's data files, and writes new data files, which the caller commits."""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, bin_pack_arrow_table, pyarrow_to_schema, write_file
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import FileScanTask, TableProperties, WriteTask
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_int

import manifold.lake.text_bounds  # noqa: F401  # rows may contain any text

TARGET_BYTES = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT


def read_files(
    table: IcebergTable,
    tasks: Iterable[FileScanTask],
    columns: Sequence[str] | None = None,
    row_filter: BooleanExpression = AlwaysTrue(),  # noqa: B008  # immutable
) -> pa.Table:
    """Read the rows of these files that pass the filter, in the table's current schema; `columns` is None for all columns."""
    schema = table.schema() if columns is None else table.schema().select(*columns)
    rows = ArrowScan(table.metadata, table.io, schema, row_filter).to_table(tasks)
    return rows if columns is None else rows.select(list(columns))


def write_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> Iterator[DataFile]:
    """Write the rows to new files, at least one per partition, without committing them.

    `Table.append`, `delete` and `overwrite` write files, too, but commit up to three snapshots; a run may commit only one
    snapshot per table.
    """
    schema = pyarrow_to_schema(rows.schema, metadata.schema().name_mapping, format_version=metadata.format_version)
    configured_bytes = property_as_int(metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TARGET_BYTES)
    target_bytes = configured_bytes or TARGET_BYTES
    write_id = uuid.uuid4()
    file_numbers = count()
    tasks = (
        WriteTask(write_id, next(file_numbers), schema, batches, partition_key=key)
        for key, partition_rows in _partitions(metadata, rows)
        for batches in bin_pack_arrow_table(partition_rows, target_bytes)
    )
    return write_file(io, metadata, tasks)


def _partitions(metadata: TableMetadata, rows: pa.Table) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Split the rows by partition: yield the key (None for an unpartitioned table) and rows of each partition.

    Manifold's tables are partitioned by one column at most.
    """
    spec, schema = metadata.spec(), metadata.schema()
    if spec.is_unpartitioned():
        yield None, rows
        return
    (field,) = spec.fields
    source = schema.find_field(field.source_id)
    partition_of = field.transform.pyarrow_transform(source.field_type)
    values = partition_of(rows[source.name])
    for value in pc.unique(values):
        is_in_partition = pc.equal(values, value) if value.is_valid else pc.is_null(values)
        key = PartitionKey([PartitionFieldValue(field, value.as_py())], spec, schema)
        yield key, rows.filter(is_in_partition).combine_chunks()
