"""Commits to a table to which others commit too: whoever lost a race looks again."""

from collections.abc import Mapping

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, CommitFailedException
from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random

from contracts.tables import Table

MAIN = "main"


def _lost_a_race(exc: BaseException) -> bool:
    """Whether a commit failed because somebody else's came first: nothing happened, and from a fresh look it may work.

    Where another *branch* has grown meanwhile, neither PyIceberg's SQL catalog nor a REST catalog calls it a conflict; nor does
    the SQL catalog where a property that is to be removed has gone.
    """
    return (
        isinstance(exc, CommitFailedException)
        or (isinstance(exc, ValueError | BadRequestError) and "older than last sequence number" in str(exc))
        or (isinstance(exc, KeyError) and str(exc.args[0]).startswith("manifold."))
    )


patiently = retry(retry=retry_if_exception(_lost_a_race), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True)


@patiently
def append_rows(catalog: Catalog, table: Table, rows: pa.Table, said: Mapping[str, str], *, branch: str = MAIN) -> None:
    """Append to a branch at once, whoever else commits to the table; to main only of tables that are no part of a run."""
    catalog.load_table(table.identifier).append(rows, snapshot_properties=dict(said), branch=branch)
