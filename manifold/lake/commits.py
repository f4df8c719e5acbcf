"""Commits to tables to which other processes also commit. A commit is retried if another process has committed first."""

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random

import manifold.lake.text_bounds  # noqa: F401  # rows may contain any text
from manifold.contracts.tables import Table
from manifold.lake.compat import Change

MAIN = "main"


def _is_conflict(exc: BaseException) -> bool:
    """Whether a commit failed because another commit came first. Nothing was changed then, and a retry may succeed.

    PyIceberg reports most conflicts by exceptions of its own. There are two more cases:
    if another *branch* was written, the error is a ValueError (SQL catalog) or BadRequestError (REST catalog); and
    if the commit removes a property that another process has removed, the SQL catalog raises a KeyError with its name.
    """
    if isinstance(exc, CommitFailedException | ValidationException):
        return True
    if isinstance(exc, ValueError | BadRequestError):
        return "older than last sequence number" in str(exc)
    return isinstance(exc, KeyError) and str(exc.args[0]).startswith("manifold.")


retry_conflicts = retry(
    retry=retry_if_exception(_is_conflict), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True
)


@retry_conflicts
def append_rows(catalog: Catalog, table: Table, rows: pa.Table, properties: Mapping[str, str], *, branch: str = MAIN) -> None:
    """Append rows to a branch in one commit, and retry it after conflicts with other writers.

    Use main only for tables that are not written by runs.
    """
    with Change(catalog.load_table(table.identifier)) as change:
        change.append(rows, snapshot_properties=dict(properties), branch=branch)


def append_nothing(catalog: Catalog, table: Table, branch: str, properties: Mapping[str, str]) -> None:
    """Commit a snapshot that adds no rows to the branch, but has these properties and the table's current schema."""
    schema = catalog.load_table(table.identifier).schema().as_arrow()
    append_rows(catalog, table, schema.empty_table(), properties, branch=branch)
