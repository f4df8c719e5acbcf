"""Compares the version of a table in the lake with the versions that this code supports."""

from pyiceberg.table import Table as IcebergTable

from manifold.contracts.errors import Permanent
from manifold.contracts.tables import COMMON_PROPERTIES, MIGRATING, SCHEMA_VERSION, Table

FIRST_VERSION = 1  # the version of a table that lacks the property SCHEMA_VERSION


def initial_properties(table: Table) -> dict[str, str]:
    """The properties of a new table. They include the current schema version, so that the table needs no migration."""
    return COMMON_PROPERTIES | table.properties | {SCHEMA_VERSION: str(table.version)}


def version_of(loaded: IcebergTable) -> int:
    """The schema version that the table has, or to which it is being migrated.

    Raises:
        Permanent: the property with the version is not a number.
    """
    version = loaded.properties.get(SCHEMA_VERSION, str(FIRST_VERSION))
    if not version.isascii() or not version.isdigit():
        name = ".".join(loaded.name())
        raise Permanent(
            f"{name} has the property {SCHEMA_VERSION}={version!r}, which is not a version: set it to a number, 1 or greater"
        )
    return int(version)


def is_migrating(loaded: IcebergTable) -> bool:
    """Whether the migration step to the table's version is in progress, or was interrupted."""
    return any(name.startswith(MIGRATING) for name in loaded.properties)


def require_not_newer(loaded: IcebergTable, table: Table) -> None:
    """Refuse a table of a newer release.

    Raises:
        Permanent: the table's version is newer than this code's.
    """
    version = version_of(loaded)
    if version > table.version:
        raise Permanent(
            f"{table.identifier} is of schema version {version}, made by a newer release; this one knows it up to version "
            f"{table.version}: install the newer release, or restore the copy of the lake that was made before the upgrade"
        )


def require_supported(loaded: IcebergTable, table: Table) -> None:
    """Refuse a table with which this code cannot work. A table that is only somewhat older is accepted, and can be migrated.

    Raises:
        Permanent: the table is newer than this code, or too old for it.
    """
    require_not_newer(loaded, table)
    version = version_of(loaded)
    if is_migrating(loaded):
        version -= 1  # the migration step to this version is not complete
    if version < table.oldest:
        raise Permanent(
            f"{table.identifier} is of schema version {version}, and this release needs version {table.oldest} or newer: run "
            "manifold lake migrate (with --plan it says what it would do)"
        )
