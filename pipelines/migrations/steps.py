"""The kinds of steps that change a table's metadata. Each skips what is already done."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.table import Transaction

from manifold.contracts.tables import Column
from manifold.lake.schema import ICEBERG_TYPES


@dataclass(frozen=True, slots=True)
class Step:
    """A step from one version of a table to the next."""

    name: str  # unique in its table; words with hyphens

    def describe(self) -> str:
        """Describe the step for people."""
        raise NotImplementedError

    def change(self, change: Transaction) -> None:
        """Change the table's metadata, unless it is done already."""


@dataclass(frozen=True, slots=True)
class SetProperties(Step):
    """Set properties that the table lacks, or has as an earlier release set them; a site's own values stay."""

    values: Mapping[str, str]
    instead_of: Mapping[str, str] = field(default_factory=dict)  # values that an earlier release set

    def describe(self) -> str:
        """Name the properties."""
        return f"properties: {', '.join(f'{name}={value}' for name, value in self.values.items())}"

    def change(self, change: Transaction) -> None:
        """Set the properties that the site has not set itself."""
        has = change.table_metadata.properties
        new = {name: value for name, value in self.values.items() if has.get(name) in {None, self.instead_of.get(name)}}
        if new:
            change.set_properties(new)


@dataclass(frozen=True, slots=True)
class AddColumns(Step):
    """Add optional columns; existing rows have null in them, and no file is rewritten."""

    columns: tuple[Column, ...]

    def describe(self) -> str:
        """Name the columns."""
        return f"new columns: {', '.join(column.name for column in self.columns)}"

    def change(self, change: Transaction) -> None:
        """Add the missing columns."""
        has = {field.name for field in change.table_metadata.schema().fields}
        missing = [column for column in self.columns if column.name not in has]
        if missing:
            with change.update_schema() as schema:
                for column in missing:
                    schema.add_column(column.name, ICEBERG_TYPES[column.type], column.meaning)


@dataclass(frozen=True, slots=True)
class RenameColumn(Step):
    """Rename a column; its rows stay, because Iceberg identifies columns by id."""

    old: str
    new: str

    def describe(self) -> str:
        """Name the old and the new column."""
        return f"column {self.old} becomes {self.new}"

    def change(self, change: Transaction) -> None:
        """Rename the column, unless it is done already."""
        if self.new not in {field.name for field in change.table_metadata.schema().fields}:
            with change.update_schema() as schema:
                schema.rename_column(self.old, self.new)


@dataclass(frozen=True, slots=True)
class WidenColumn(Step):
    """Widen a column's type (int to bigint), or make the column optional; no file is rewritten."""

    column: str
    type: pa.DataType
    required: bool = True

    def describe(self) -> str:
        """Name the column and its new type."""
        return f"column {self.column} becomes {self.type}{'' if self.required else ', and may be empty'}"

    def change(self, change: Transaction) -> None:
        """Widen the column, unless it is done already."""
        has, wanted = change.table_metadata.schema().find_field(self.column), ICEBERG_TYPES[self.type]
        if has.field_type != wanted or has.required > self.required:
            with change.update_schema() as schema:
                schema.update_column(self.column, wanted, required=has.required and self.required)


@dataclass(frozen=True, slots=True)
class PartitionBy(Step):
    """Partition new files by these (column, transform) pairs, and nothing else.

    Existing files stay where they are until compaction rewrites them; readers find them by the spec with which they were written.
    """

    fields: tuple[tuple[str, str], ...]  # transforms by Iceberg's names: day, identity, bucket[16]

    def describe(self) -> str:
        """Name the partition fields."""
        return f"partitions: {', '.join(f'{transform} of {column}' for column, transform in self.fields) or 'none'}"

    def change(self, change: Transaction) -> None:
        """Change the partition spec, unless it is done already."""
        metadata = change.table_metadata
        names = {field.name for field in metadata.spec().fields}
        wanted = {_field_name(column, transform): (column, transform) for column, transform in self.fields}
        if names != wanted.keys():
            with change.update_spec() as spec:
                for name in sorted(names - wanted.keys()):
                    spec.remove_field(name)
                for name, (column, transform) in wanted.items():
                    if name not in names:
                        spec.add_field(column, transform, name)


def _field_name(column: str, transform: str) -> str:
    """The field's name, as in `manifold.lake.catalog`: `ts_day`."""
    return column if transform == "identity" else f"{column}_{transform.split('[')[0]}"
