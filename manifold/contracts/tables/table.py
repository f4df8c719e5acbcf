"""The definition of a table, and the properties that all tables share."""

from dataclasses import dataclass, field

import pyarrow as pa

NAMESPACE = "sdv"
INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, whether every row has it, and what it says."""

    name: str
    type: pa.DataType
    meaning: str
    required: bool = True


def columns(text: str, **types: pa.DataType) -> tuple[Column, ...]:
    """The columns in `text`, one a line: name, type, meaning; a `?` after the type says that not every row has it.

    A type is `instant`, one of `types`, or what Arrow has under this name.
    """
    return tuple(_column(line, {"instant": INSTANT, **types}) for line in text.strip().splitlines())


def _column(line: str, types: dict[str, pa.DataType]) -> Column:
    name, said, meaning = line.split(maxsplit=2)
    of = said.removesuffix("?")
    return Column(name, types.get(of) or pa.type_for_alias(of), meaning, required=of == said)


@dataclass(frozen=True, slots=True)
class Table:
    """One Iceberg table: its grain is `key`; `day_of` is the timestamp column whose day partitions it.

    `version` counts the steps in `pipelines.migrations` that lead to this definition; with a table older than `oldest` this code
    cannot work.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    meaning: str
    day_of: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    version: int = 1
    oldest: int = 1

    @property
    def identifier(self) -> str:
        """`namespace.table`, as PyIceberg names it; Spark puts the catalog's name in front."""
        return f"{NAMESPACE}.{self.name}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema; PyIceberg makes the Iceberg schema from it."""
        return pa.schema(
            [pa.field(c.name, c.type, nullable=not c.required, metadata={"doc": c.meaning}) for c in self.columns],
        )


SCHEMA_VERSION = "manifold.schema-version"  # table property; a table without it is of version 1
MIGRATING = "manifold.migrating."  # table property, + step: when it began, for as long as it is not done

# Many writers at once retry for a minute rather than fail: with the defaults 3 to 7 of 200 concurrent commits failed.
COMMON_PROPERTIES = {
    "format-version": "2",  # PyIceberg cannot write version 3
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "2000",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",  # arrival order; compaction clusters by VIN later
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}

# Readers skip what lies in other row groups: a look-up reads about a group, and not a file. Groups are cut where this many rows
# exceed the size, so that payloads of the largest size make small groups too.
SMALL_ROW_GROUPS = {
    "write.parquet.row-group-size-bytes": str(1 << 20),
    "write.parquet.row-group-check-min-record-count": "4",
}
# A table to which PyIceberg appends with every run would get a manifest each time, and whoever looks for a row reads them all.
FEW_MANIFESTS = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "30"}
