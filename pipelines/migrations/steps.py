"""The kinds of steps that change a table's metadata. A step that has been taken before changes nothing."""

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

    def change(self, transaction: Transaction) -> None:
        """Stage the step's change of the table's metadata. Each kind of step overrides this."""


@dataclass(frozen=True, slots=True)
class SetProperties(Step):
    """Set properties that the table lacks, or that still have the value of an earlier release. A site's own values stay."""

    values: Mapping[str, str]
    instead_of: Mapping[str, str] = field(default_factory=dict)  # values that an earlier release set, and that are replaced

    def describe(self) -> str:
        """Name the properties."""
        assignments = [f"{name}={value}" for name, value in self.values.items()]
        return f"properties: {', '.join(assignments)}"

    def change(self, transaction: Transaction) -> None:
        """Set the properties that the site has not set itself."""
        current = transaction.table_metadata.properties
        new = {}
        for name, value in self.values.items():
            is_unset = current.get(name) is None
            has_earlier_value = name in self.instead_of and current.get(name) == self.instead_of[name]
            if is_unset or has_earlier_value:
                new[name] = value
        if new:
            transaction.set_properties(new)


@dataclass(frozen=True, slots=True)
class AddColumns(Step):
    """Add optional columns; existing rows have null in them, and no file is rewritten."""

    columns: tuple[Column, ...]

    def describe(self) -> str:
        """Name the columns."""
        return f"new columns: {', '.join(column.name for column in self.columns)}"

    def change(self, transaction: Transaction) -> None:
        """Add the missing columns."""
        existing_names = {field.name for field in transaction.table_metadata.schema().fields}
        missing = [column for column in self.columns if column.name not in existing_names]
        if missing:
            with transaction.update_schema() as schema:
                for column in missing:
                    schema.add_column(column.name, ICEBERG_TYPES[column.type], column.meaning)


@dataclass(frozen=True, slots=True)
class RenameColumn(Step):
    """Rename a column. No file is rewritten, because Iceberg identifies columns by id."""

    old: str
    new: str

    def describe(self) -> str:
        """Name the old and the new column."""
        return f"column {self.old} becomes {self.new}"

    def change(self, transaction: Transaction) -> None:
        """Rename the column, unless it has the new name already."""
        existing_names = {field.name for field in transaction.table_metadata.schema().fields}
        if self.new not in existing_names:
            with transaction.update_schema() as schema:
                schema.rename_column(self.old, self.new)


@dataclass(frozen=True, slots=True)
class WidenColumn(Step):
    """Widen a column's type (int to bigint), or make the column optional; no file is rewritten."""

    column: str
    type: pa.DataType
    required: bool = True

    def describe(self) -> str:
        """Name the column and its new type."""
        optional = "" if self.required else ", and may be empty"
        return f"column {self.column} becomes {self.type}{optional}"

    def change(self, transaction: Transaction) -> None:
        """Widen the column, unless it has the new type and is as optional as wanted."""
        current = transaction.table_metadata.schema().find_field(self.column)
        new_type = ICEBERG_TYPES[self.type]
        must_become_optional = current.required and not self.required
        if current.field_type != new_type or must_become_optional:
            with transaction.update_schema() as schema:
                schema.update_column(self.column, new_type, required=current.required and self.required)


@dataclass(frozen=True, slots=True)
class PartitionBy(Step):
    """Partition new files by these columns alone.

    Existing files keep their partitions until compaction rewrites them. Readers find existing files by the partition spec with
    which they were written.
    """

    fields: tuple[tuple[str, str], ...]  # (column, transform); transforms have Iceberg's names: day, identity, bucket[16]

    def describe(self) -> str:
        """Name the partition fields."""
        fields = [f"{transform} of {column}" for column, transform in self.fields]
        return f"partitions: {', '.join(fields) or 'none'}"

    def change(self, transaction: Transaction) -> None:
        """Change the partition spec, unless it has exactly these fields already."""
        current_names = {field.name for field in transaction.table_metadata.spec().fields}
        new_fields = {_field_name(column, transform): (column, transform) for column, transform in self.fields}
        if current_names != new_fields.keys():
            with transaction.update_spec() as spec:
                for name in sorted(current_names - new_fields.keys()):
                    spec.remove_field(name)
                for name, (column, transform) in new_fields.items():
                    if name not in current_names:
                        spec.add_field(column, transform, name)


def _field_name(column: str, transform: str) -> str:
    """Name the partition field as `manifold.lake.schema` does, for example `ts_day`.

    The name lacks the argument of a transform, so a step that changes only the argument would change nothing.
    """
    transform_name = transform.split("[")[0]
    return column if transform == "identity" else f"{column}_{transform_name}"
