"""The kinds of step that change a table's metadata. Each leaves alone what is already as it should be."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.table import Transaction

from manifold.contracts.tables import Column
from manifold.lake.schema import ICEBERG_TYPES


@dataclass(frozen=True, slots=True)
class Step:
    """From one version of a table to the next."""

    name: str  # unique in its table; words with hyphens

    def says(self) -> str:
        """The step in words, for people."""
        raise NotImplementedError

    def change(self, change: Transaction) -> None:
        """Change the table's metadata, where it is not changed yet."""


@dataclass(frozen=True, slots=True)
class SetProperties(Step):
    """Set the properties that the table lacks, or has as an earlier release set them; a site's own values stay."""

    values: Mapping[str, str]
    instead_of: Mapping[str, str] = field(default_factory=dict)  # what an earlier release set

    def says(self) -> str:
        """Which."""
        return f"properties: {', '.join(f'{name}={value}' for name, value in self.values.items())}"

    def change(self, change: Transaction) -> None:
        """Those that the site has not set itself."""
        has = change.table_metadata.properties
        new = {name: value for name, value in self.values.items() if has.get(name) in {None, self.instead_of.get(name)}}
        if new:
            change.set_properties(new)


@dataclass(frozen=True, slots=True)
class AddColumns(Step):
    """Add optional columns; rows that are there have null in them, and no file is written again."""

    columns: tuple[Column, ...]

    def says(self) -> str:
        """Which."""
        return f"new columns: {', '.join(column.name for column in self.columns)}"

    def change(self, change: Transaction) -> None:
        """Those that are missing."""
        has = {field.name for field in change.table_metadata.schema().fields}
        missing = [column for column in self.columns if column.name not in has]
        if missing:
            with change.update_schema() as schema:
                for column in missing:
                    schema.add_column(column.name, ICEBERG_TYPES[column.type], column.meaning)


@dataclass(frozen=True, slots=True)
class RenameColumn(Step):
    """Give a column another name; its rows stay, for Iceberg knows columns by number."""

    old: str
    new: str

    def says(self) -> str:
        """From what to what."""
        return f"column {self.old} becomes {self.new}"

    def change(self, change: Transaction) -> None:
        """Unless it is renamed."""
        if self.new not in {field.name for field in change.table_metadata.schema().fields}:
            with change.update_schema() as schema:
                schema.rename_column(self.old, self.new)


@dataclass(frozen=True, slots=True)
class WidenColumn(Step):
    """Give a column a type that holds more (int to bigint), or let it be empty; no file is written again."""

    column: str
    type: pa.DataType
    required: bool = True

    def says(self) -> str:
        """What it becomes."""
        return f"column {self.column} becomes {self.type}{'' if self.required else ', and may be empty'}"

    def change(self, change: Transaction) -> None:
        """Unless it is so."""
        has, wanted = change.table_metadata.schema().find_field(self.column), ICEBERG_TYPES[self.type]
        if has.field_type != wanted or has.required > self.required:
            with change.update_schema() as schema:
                schema.update_column(self.column, wanted, required=has.required and self.required)


@dataclass(frozen=True, slots=True)
class PartitionBy(Step):
    """Partition what is written from now on by these (column, transform), and nothing else.

    What is there stays where it is until compaction writes it again; readers find it by the partitions that it was written with.
    """

    fields: tuple[tuple[str, str], ...]  # transforms as Iceberg names them: day, identity, bucket[16]

    def says(self) -> str:
        """By what."""
        return f"partitions: {', '.join(f'{transform} of {column}' for column, transform in self.fields) or 'none'}"

    def change(self, change: Transaction) -> None:
        """Unless it is so."""
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
    """As `manifold.lake.catalog` names fields: `ts_day`."""
    return column if transform == "identity" else f"{column}_{transform.split('[')[0]}"
