"""Converts the table definitions of `manifold.contracts.tables` to Iceberg schemas, types and partition specs."""

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from manifold.contracts.tables import INSTANT, Table

FIRST_PARTITION_FIELD = 1000  # Iceberg numbers partition fields from here

ICEBERG_TYPES: dict[pa.DataType, IcebergType] = {
    pa.string(): StringType(),
    pa.int64(): LongType(),
    pa.int32(): IntegerType(),
    pa.float64(): DoubleType(),
    pa.bool_(): BooleanType(),
    pa.binary(): BinaryType(),
    INSTANT: TimestamptzType(),
}


def iceberg_schema(table: Table) -> Schema:
    """The Iceberg schema of a table. Columns have the field ids 1, 2, …; the key columns are the identifier fields."""
    nested_ids = count(len(table.columns) + 1)
    fields = [
        NestedField(field_id, column.name, iceberg_type(column.type, nested_ids), required=column.required, doc=column.meaning)
        for field_id, column in enumerate(table.columns, start=1)
    ]
    return Schema(*fields, identifier_field_ids=[field.field_id for field in fields if field.name in table.key])


def iceberg_type(arrow_type: pa.DataType, field_ids: Iterator[int] | None = None) -> IcebergType:
    """Convert an Arrow type to the Iceberg type.

    `field_ids` yields ids for nested fields, by default 1, 2, …; the catalog replaces them when it creates the field.
    """
    ids = field_ids or count(1)
    if pa.types.is_list(arrow_type):
        return ListType(element_id=next(ids), element_type=iceberg_type(arrow_type.value_type, ids), element_required=False)
    if pa.types.is_struct(arrow_type):
        fields = [NestedField(next(ids), field.name, iceberg_type(field.type, ids), required=False) for field in arrow_type]
        return StructType(*fields)
    return ICEBERG_TYPES[arrow_type]


def partition_spec(table: Table) -> PartitionSpec:
    """Partition by the day of the column `table.day_of`; unpartitioned if it is None."""
    if table.day_of is None:
        return PartitionSpec()
    source_id = next(field_id for field_id, column in enumerate(table.columns, start=1) if column.name == table.day_of)
    return PartitionSpec(PartitionField(source_id, FIRST_PARTITION_FIELD, DayTransform(), f"{table.day_of}_day"))
