"""Iceberg declarations of the tables in `manifold.contracts.tables`: schema, types, partitions. Pure."""

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
    """The Iceberg schema: fields numbered from 1 in the order of the definition; the key columns identify a row."""
    nested = count(len(table.columns) + 1)
    fields = [
        NestedField(place, column.name, iceberg_type(column.type, nested), required=column.required, doc=column.meaning)
        for place, column in enumerate(table.columns, start=1)
    ]
    return Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in table.key])


def iceberg_type(of: pa.DataType, numbers: Iterator[int] | None = None) -> IcebergType:
    """The Iceberg type; `numbers` are ids for nested fields, which the catalog replaces by its own."""
    numbers = numbers or count(1)
    if pa.types.is_list(of):
        return ListType(element_id=next(numbers), element_type=iceberg_type(of.value_type, numbers), element_required=False)
    if pa.types.is_struct(of):
        inside = [NestedField(next(numbers), field.name, iceberg_type(field.type, numbers), required=False) for field in of]
        return StructType(*inside)
    return ICEBERG_TYPES[of]


def partition_spec(table: Table) -> PartitionSpec:
    """Partition by the day of `table.day_of`; unpartitioned if it has none."""
    if table.day_of is None:
        return PartitionSpec()
    source = next(place for place, column in enumerate(table.columns, start=1) if column.name == table.day_of)
    return PartitionSpec(PartitionField(source, FIRST_PARTITION_FIELD, DayTransform(), f"{table.day_of}_day"))
