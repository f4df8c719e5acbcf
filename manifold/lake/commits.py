"""Commits to a table that other processes also commit to. A commit that lost a race is tried again."""

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random

import manifold.lake.text_bounds  # noqa: F401  # what is appended may hold any text
from manifold.contracts.tables import Table
from manifold.lake.compat import Change

MAIN = "main"


def _lost_a_race(exc: BaseException) -> bool:
    """Whether a commit failed because somebody else's came first: nothing happened, and from a fresh look it may work.

    PyIceberg tries a removal of rows again by itself, but refuses it where another job has appended any. Where another *branch*
    has grown meanwhile, neither PyIceberg's SQL catalog nor a REST catalog calls it a conflict; nor does
    the SQL catalog where a property that is to be removed has gone.
    """
    return (
        isinstance(exc, CommitFailedException | ValidationException)
        or (isinstance(exc, ValueError | BadRequestError) and "older than last sequence number" in str(exc))
        or (isinstance(exc, KeyError) and str(exc.args[0]).startswith("manifold."))
    )


patiently = retry(retry=retry_if_exception(_lost_a_race), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True)


@patiently
def append_rows(catalog: Catalog, table: Table, rows: pa.Table, properties: Mapping[str, str], *, branch: str = MAIN) -> None:
    """Append to a branch at once, beside other writers of the table; to main only of tables that are no part of a run."""
    with Change(catalog.load_table(table.identifier)) as change:
        change.append(rows, snapshot_properties=dict(properties), branch=branch)


def append_nothing(catalog: Catalog, table: Table, branch: str, properties: Mapping[str, str]) -> None:
    """A snapshot with the rows of the one before it, and the table's present schema, whatever that is."""
    append_rows(catalog, table, catalog.load_table(table.identifier).schema().as_arrow().empty_table(), properties, branch=branch)
