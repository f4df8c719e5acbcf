"""A REST catalog with timeouts. PyIceberg's HTTP session has none, and waits forever on a dead connection.

Such a wait blocks a thread until the process ends, and a dispatcher has only four threads for each kind of look-up. Object
storage needs no timeout here: Arrow's S3 client gives up on a silent store after some ten seconds. The class overrides a private
method, because PyIceberg has no public access to the session before its first request. It can be removed when PyIceberg has a
property for timeouts.
"""

from functools import partial
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import CommitTableResponse
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import TableRequirement, TableUpdate
from requests import Session

from manifold.contracts.errors import Permanent
from manifold.lake.committed import record_commit

CONNECT, ANSWER = "rest.client.connection-timeout-ms", "rest.client.socket-timeout-ms"  # as Iceberg's Java side names them
# Connecting takes one or two round trips, a response milliseconds, a commit to a busy catalog seconds. A client whose commit
# times out loads the table again, and thus learns whether the commit succeeded.
DEFAULT_MS = {CONNECT: 10_000.0, ANSWER: 60_000.0}


class RestCatalogWithTimeouts(RestCatalog):
    """A REST catalog that raises `requests.Timeout` if the server is silent for too long, in token requests too.

    Raises:
        Permanent: a limit among the properties is not a number of milliseconds.
    """

    def commit_table(
        self, table: IcebergTable, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit, and record the commit for lineage."""
        response: CommitTableResponse = super().commit_table(table, requirements, updates)
        record_commit(table.name(), updates)
        return response

    def _config_headers(self, session: Session) -> None:
        """Set the session's timeouts. PyIceberg calls this for each new session, before the first request on it."""
        super()._config_headers(session)
        timeout = (self._limit_s(CONNECT), self._limit_s(ANSWER))
        session.request = partial(session.request, timeout=timeout)  # type: ignore[method-assign]

    def _limit_s(self, name: str) -> float:
        """The time limit of this property, or its default, in seconds.

        Raises:
            Permanent: it is not a number of milliseconds.
        """
        value: Any = self.properties.get(name, DEFAULT_MS[name])
        try:
            limit_ms = float(value)
        except ValueError:
            limit_ms = 0  # refused below
        if not 0 < limit_ms < float("inf"):
            raise Permanent(f"{name}={value} in MANIFOLD_CATALOG_PROPERTIES is not a number of milliseconds: 60000 is a minute")
        return limit_ms / 1000
