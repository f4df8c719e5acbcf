"""A run that ingests nothing: it changes existing rows, and takes effect by one compare-and-swap. No Spark."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from pyiceberg.catalog import Catalog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from manifold.contracts.tables import SEGMENTS, Table
from pipelines.ingest import branches
from pipelines.ingest.branches import ConcurrentPublish
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.publish import pins_of, publish
from pipelines.ingest.run import Ingested

MAX_ATTEMPTS = 20

Change = Callable[[str, dict[str, str]], object]  # commits one snapshot with these properties to this branch


def until_not_overtaken(tries: int = MAX_ATTEMPTS) -> Retrying:
    """Retry a run from its base while other runs are published first; finally raise `ConcurrentPublish`."""
    return Retrying(
        retry=retry_if_exception_type(ConcurrentPublish), stop=stop_after_attempt(tries), wait=wait_random(0, 1), reraise=True
    )


class MaintenanceRun:
    """A maintenance run, open from construction on: at most one snapshot per table, that of `ingested_segments` last."""

    def __init__(self, catalog: Catalog, what: str, base: Mapping[str, int], now: datetime) -> None:
        self.run_id = f"{what}_{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"
        self._catalog, self._base = catalog, base
        self._properties = {branches.RUN_ID: self.run_id, branches.ATTEMPT: secrets.token_hex(8)}
        self.pins: dict[str, int] = {}
        branches.open_run(catalog, self.run_id, base[SEGMENTS.name], now)

    def change(self, table: Table, how: Change) -> None:
        """Change a table on the run's branch.

        Raises:
            ConcurrentPublish: another job has closed the run; nothing happened.
        """
        with self._dropped_if_overtaken():
            branches.create_branch(self._catalog, table, self.run_id, self._base[table.name])
            how(branches.branch_of(self.run_id), dict(self._properties))
            self.pins[table.name] = self._head(table)

    def publish(self, how: Change, more: Mapping[str, str] | None = None) -> None:
        """Change `ingested_segments`, with `more` as further snapshot properties, and commit the run.

        Raises:
            ConcurrentPublish: another run was published since this one's base, or has closed this one; nothing happened.
            LeaseLost: another job has taken this job's lease; nothing happened.
        """
        properties = self._properties | pins_of(self.pins) | {branches.RESULT: Ingested(self.run_id).to_json()} | dict(more or {})
        with self._dropped_if_overtaken():
            how(branches.branch_of(self.run_id), properties)
            self.pins[SEGMENTS.name] = self._head(SEGMENTS)
            publish(self._catalog, self.run_id, must=True)

    def _head(self, table: Table) -> int:
        head = branches.head_of(self._catalog, table, self.run_id)
        if (
            head is None
            or branches.properties_of(head).get(branches.ATTEMPT) != self._properties[branches.ATTEMPT]
            or head.parent_snapshot_id != self._base[table.name]
        ):
            raise ConcurrentPublish(f"another job has closed run {self.run_id}; do it again")
        return head.snapshot_id

    @contextmanager
    def _dropped_if_overtaken(self) -> Iterator[None]:
        """Drop the run's branches if it cannot be published: its last write may have recreated one that another job dropped."""
        try:
            yield
        except (ConcurrentPublish, LeaseLost):
            branches.drop_branches(self._catalog, branches.branch_of(self.run_id))
            raise
