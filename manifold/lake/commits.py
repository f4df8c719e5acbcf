"""Commits to tables to which other processes also commit. A commit that lost a race is retried."""

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random

import manifold.lake.text_bounds  # noqa: F401  # rows may contain any text
from manifold.contracts.tables import Table
from manifold.lake.compat import Change

MAIN = "main"


def _lost_a_race(exc: BaseException) -> bool:
    """Whether a commit failed because another one came first: nothing happened, and a retry on fresh metadata may work.

    PyIceberg itself retries a removal of rows, but refuses it if another job has appended any. If another *branch* has grown in
    the meantime, neither PyIceberg's SQL catalog nor a REST catalog calls it a conflict; nor does the SQL catalog if a property
    that is to be removed is gone.
    """
    return (
        isinstance(exc, CommitFailedException | ValidationException)
        or (isinstance(exc, ValueError | BadRequestError) and "older than last sequence number" in str(exc))
        or (isinstance(exc, KeyError) and str(exc.args[0]).startswith("manifold."))
    )


retry_conflicts = retry(
    retry=retry_if_exception(_lost_a_race), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True
)


@retry_conflicts
def append_rows(catalog: Catalog, table: Table, rows: pa.Table, properties: Mapping[str, str], *, branch: str = MAIN) -> None:
    """Append to a branch in one commit, beside other writers of the table; to main only for tables outside runs."""
    with Change(catalog.load_table(table.identifier)) as change:
        change.append(rows, snapshot_properties=dict(properties), branch=branch)


def append_nothing(catalog: Catalog, table: Table, branch: str, properties: Mapping[str, str]) -> None:
    """Commit a snapshot with the same rows as the one before it, and the table's current schema."""
    append_rows(catalog, table, catalog.load_table(table.identifier).schema().as_arrow().empty_table(), properties, branch=branch)
