"""The definition of a table, and the properties common to all tables."""

from dataclasses import dataclass, field

import pyarrow as pa

NAMESPACE = "sdv"
INSTANT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, whether it is required, and its meaning."""

    name: str
    type: pa.DataType
    meaning: str
    required: bool = True


def columns(text: str, **types: pa.DataType) -> tuple[Column, ...]:
    """Parse columns from text, one per line: name, type, meaning; a `?` after the type makes the column optional.

    A type is `instant`, one of `types`, or an Arrow type alias.
    """
    return tuple(_column(line, {"instant": INSTANT, **types}) for line in text.strip().splitlines())


def _column(line: str, types: dict[str, pa.DataType]) -> Column:
    name, type_word, meaning = line.split(maxsplit=2)
    type_name = type_word.removesuffix("?")
    column_type = types.get(type_name) or pa.type_for_alias(type_name)
    return Column(name, column_type, meaning, required=not type_word.endswith("?"))


@dataclass(frozen=True, slots=True)
class Table:
    """One Iceberg table with the primary key `key`; `day_of` is the timestamp column that partitions it by day.

    `version` is the number of steps in `pipelines.migrations` that lead to this definition. `oldest` is the oldest version of a
    table in a lake that this code can use.
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
        """`namespace.table`, as in PyIceberg; Spark prefixes the catalog's name."""
        return f"{NAMESPACE}.{self.name}"

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema, from which PyIceberg derives the Iceberg schema."""
        return pa.schema(
            [
                pa.field(column.name, column.type, nullable=not column.required, metadata={"doc": column.meaning})
                for column in self.columns
            ],
        )


SCHEMA_VERSION = "manifold.schema-version"  # table property; default: version 1
MIGRATING = "manifold.migrating."  # prefix of a table property, followed by a step: start time of a migration step in progress

# Retry for a minute under many concurrent writers: with the defaults 3 to 7 of 200 concurrent commits failed.
COMMON_PROPERTIES = {
    "format-version": "2",  # PyIceberg cannot write version 3
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "2000",
    "write.parquet.compression-codec": "zstd",
    "write.distribution-mode": "none",  # keep the arrival order; compaction clusters by VIN later
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}

# A lookup reads about one row group instead of a file, and skips the others. The minimum record count is low, so that payloads
# of the maximum size make small groups too.
SMALL_ROW_GROUPS = {
    "write.parquet.row-group-size-bytes": str(1 << 20),
    "write.parquet.row-group-check-min-record-count": "4",
}
# Without merging, each append by PyIceberg adds a manifest, and a lookup reads all manifests.
FEW_MANIFESTS = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "30"}
