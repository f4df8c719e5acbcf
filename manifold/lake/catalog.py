"""Opens the catalog and creates the tables, without Spark."""

import sqlite3
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.expressions import BooleanExpression, LiteralPredicate
from pyiceberg.table import Table as IcebergTable
from sqlalchemy.exc import DatabaseError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

import manifold.lake.text_bounds  # noqa: F401  # rows may contain any text
from manifold.contracts.catalog_properties import uses_sigv4
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import EVERY_RUN_TABLE, EVERY_TABLE, NAMESPACE, RUN_TABLES, SIGNAL_TABLES, TABLES, Table
from manifold.lake.schema import iceberg_schema, iceberg_type, partition_spec
from manifold.lake.versions import initial_properties, require_supported, version_of
from manifold.settings import Settings

# The tables ask for small row groups. PyIceberg cannot write those, and warns at each of its appends.
warnings.filterwarnings("ignore", message="Parquet writer option")

LOGIN_REFUSED = (UnauthorizedError, ForbiddenError, AuthorizationExpiredError, OAuthError)
SQLITE = "sqlite:///"
P = ParamSpec("P")
R = TypeVar("R")
BUSY_SECONDS = 30  # how long a writer waits for another's lock on the SQLite file


def _retry_on(error: type[Exception]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function so that it is retried after this error.

    Two processes may create the catalog's file, its own tables or the namespace at the same moment. Then one of them fails, and
    succeeds with a retry.
    """
    return retry(retry=retry_if_exception_type(error), stop=stop_after_attempt(5), wait=wait_random(0.05, 0.3), reraise=True)


@_retry_on(DatabaseError)
def open_catalog(settings: Settings) -> Catalog:
    """Open the Iceberg catalog of the settings: a REST catalog, or an SQL catalog (SQLite on the embedded platform).

    Raises:
        Permanent: the catalog refuses the login; the settings need a library that is not installed; or a time limit among the
            catalog's properties is invalid.
    """
    uri = settings.catalog
    if uri.startswith(SQLITE):
        _prepare_sqlite(Path(uri.removeprefix(SQLITE).split("?")[0]))
        if "?" not in uri:
            uri += f"?timeout={BUSY_SECONDS}"
    elif uri.startswith("postgresql"):
        from manifold.lake.postgresql import with_time_limits  # imported here: few lakes need it

        uri = with_time_limits(uri, settings.catalog_options)
    # Any other URL, such as that of a REST catalog, is used as it is.
    # Let PyIceberg create Manifold's catalog classes.
    AVAILABLE_CATALOGS[CatalogType.REST] = _open_rest
    AVAILABLE_CATALOGS[CatalogType.SQL] = _open_sql
    properties = {"type": settings.catalog_type, "uri": uri, "warehouse": settings.warehouse_url, **settings.catalog_options}
    nonempty = {name: value for name, value in properties.items() if value}
    try:
        return load_catalog(settings.catalog_name, **nonempty)
    except LOGIN_REFUSED as exc:
        raise login_refused(settings, exc) from exc
    except ModuleNotFoundError as exc:
        why = f"what MANIFOLD_CATALOG_PROPERTIES asks for needs {exc.name}, which Manifold does not bring: pip install {exc.name}"
        raise Permanent(why) from exc


def _open_rest(name: str, properties: dict[str, str]) -> Catalog:
    from manifold.lake.rest_compat import RestCatalogWithTimeouts  # imported here: few lakes need it

    return RestCatalogWithTimeouts(name, **properties)


def _open_sql(name: str, properties: dict[str, str]) -> Catalog:
    from manifold.lake.sql_catalog import CachingSqlCatalog  # imported here: SQLAlchemy is slow to import

    return CachingSqlCatalog(name, **properties)


def address_of(settings: Settings) -> str:
    """The catalog's address, without login and parameters, both of which may contain a password."""
    return settings.catalog.split("@")[-1].partition("?")[0]


def login_refused(settings: Settings, exc: Exception) -> Permanent:
    """The error for a refused login. Its message names the properties to correct, and hides the login in the catalog's URL."""
    properties = "token or credential (with oauth2-server-uri and scope, where it asks for them)"
    if uses_sigv4(settings.catalog_options):
        properties = (
            "the keys (client.access-key-id and client.secret-access-key, or those of AWS's own chain) and rest.signing-…"
        )
    reason = " ".join(str(exc).split())[:200]
    return Permanent(
        f"the catalog {address_of(settings)} refuses the login ({reason}); correct "
        f"{properties} in MANIFOLD_CATALOG_PROPERTIES, and see that it may read and write the tables"
    )


@_retry_on(sqlite3.OperationalError)
def _prepare_sqlite(file: Path) -> None:
    """Create the catalog's folder and file, and enable write-ahead logging, so that readers and a writer can work concurrently.

    The file keeps this mode, so an existing one is left alone. An empty file may be without the mode: another process has just
    created it.
    """
    if file.exists() and file.stat().st_size:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


@_retry_on(DatabaseError)
def ensure_tables(catalog: Catalog) -> list[str]:
    """Create the namespace and all missing tables; return the names of the tables that `manifold lake migrate` should migrate.

    Each new table gets an empty snapshot on main. A table of an earlier release gets the optional columns that it lacks, and its
    name is returned. Idempotent, and safe to run concurrently.

    Raises:
        Permanent: a table is newer than this code, or too old for it.
    """
    to_migrate = []
    for existing, table in _create_or_load_all(catalog, tables_of(catalog)):
        require_supported(existing, table)
        if version_of(existing) < table.version:
            to_migrate.append(table.name)
        _ensure_columns(existing, table)
        _ensure_snapshot(catalog, existing, table)
    return to_migrate


@_retry_on(DatabaseError)
def make_missing_tables(catalog: Catalog) -> None:
    """Create the missing tables. Unlike `ensure_tables`, leave the columns of existing ones to migration steps."""
    for existing, table in _create_or_load_all(catalog, tables_of(catalog)):
        _ensure_snapshot(catalog, existing, table)


@_retry_on(DatabaseError)
def make_signal_tables(catalog: Catalog) -> None:
    """Create the missing tables of signals. Idempotent, and safe to run concurrently."""
    for existing, table in _create_or_load_all(catalog, SIGNAL_TABLES):
        _ensure_snapshot(catalog, existing, table)


def has_signals(catalog: Catalog) -> bool:
    """Whether the lake has the tables of signals. They are created in order, so the last one exists only if all of them do."""
    return catalog.table_exists(SIGNAL_TABLES[-1].identifier)


def tables_of(catalog: Catalog) -> tuple[Table, ...]:
    """The tables that this lake should have: those of signals only if it has them already."""
    return EVERY_TABLE if has_signals(catalog) else TABLES


def run_tables_of(catalog: Catalog) -> tuple[Table, ...]:
    """The tables of this lake that runs write on branches: those of signals only if the lake has them."""
    return EVERY_RUN_TABLE if has_signals(catalog) else RUN_TABLES


def _create_or_load_all(catalog: Catalog, tables: Iterable[Table]) -> Iterator[tuple[IcebergTable, Table]]:
    """Yield each table as it is in the catalog, together with its definition."""
    catalog.create_namespace_if_not_exists(NAMESPACE)
    for table in tables:
        yield _create_or_load(catalog, table), table


def _create_or_load(catalog: Catalog, table: Table) -> IcebergTable:
    """Load the table; create it only if it does not exist.

    `create_table_if_not_exists` alone would do, but for an existing table an SQL catalog leaves a metadata file behind each time.
    """
    try:
        return catalog.load_table(table.identifier)
    except NoSuchTableError:
        return catalog.create_table_if_not_exists(
            table.identifier,
            schema=iceberg_schema(table),
            partition_spec=partition_spec(table),
            properties=initial_properties(table),
        )


def _ensure_columns(existing: IcebergTable, table: Table) -> None:
    """Add the columns that a table of an earlier release lacks. They must be optional, because old files lack them."""
    existing_names = {field.name for field in existing.schema().fields}
    missing = [column for column in table.columns if column.name not in existing_names]
    if not missing:
        return
    try:
        with existing.update_schema() as change:
            for column in missing:
                change.add_column(column.name, iceberg_type(column.type), column.meaning, required=column.required)
    except CommitFailedException:  # another process has changed the table first, and may have added the columns
        _ensure_columns(existing.refresh(), table)


def _ensure_snapshot(catalog: Catalog, existing: IcebergTable, table: Table) -> None:
    """Give main an empty snapshot if it has none: runs start their branches from it, and publication compares main with it."""
    if existing.current_snapshot() is not None:
        return
    try:
        existing.append(table.arrow_schema.empty_table())
    except CommitFailedException:
        if catalog.load_table(table.identifier).current_snapshot() is not None:  # another process has committed one first
            return
        raise


def where(predicate: type[LiteralPredicate], column: str, value: str | int | datetime) -> BooleanExpression:
    """A filter for PyIceberg's scans and deletes: rows in which `column` compares to `value` as `predicate` says."""
    literal = value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value
    return predicate(column, literal)
