"""Maintenance runs: they ingest nothing, change existing rows, and are committed by one compare-and-swap. No Spark."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from pyiceberg.catalog import Catalog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from manifold.contracts.tables import SEGMENTS, Table
from pipelines.ingest import branches
from pipelines.ingest.branches import Overtaken, pins_of
from pipelines.ingest.lease import LeaseLost
from pipelines.ingest.publish import publish
from pipelines.ingest.run import Ingested

MAX_PUBLISH_ATTEMPTS = 20
MAX_PUBLISH_WAIT_S = 1  # longest wait between two attempts; it is random, so that competing runs part

Commit = Callable[[str, dict[str, str]], object]  # commits one snapshot to this branch, with these properties


def until_not_overtaken(attempts: int = MAX_PUBLISH_ATTEMPTS) -> Retrying:
    """Retry a run, from reading its base snapshots on, while other runs are published first.

    After `attempts` attempts, the last `Overtaken` is raised.
    """
    return Retrying(
        retry=retry_if_exception_type(Overtaken),
        stop=stop_after_attempt(attempts),
        wait=wait_random(0, MAX_PUBLISH_WAIT_S),
        reraise=True,
    )


class MaintenanceRun:
    """A maintenance run. It writes at most one snapshot per table, and the snapshot of `ingested_segments` last.

    Construction opens the run. `prefix` is the beginning of its run id, and `base` has the snapshot of main by table name.
    """

    def __init__(self, catalog: Catalog, prefix: str, base: Mapping[str, int], now: datetime) -> None:
        self.run_id = f"{prefix}_{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"
        self.pins: dict[str, int] = {}  # table name → id of the snapshot that the run wrote
        self._catalog, self._base = catalog, base
        self._properties = {branches.RUN_ID: self.run_id, branches.ATTEMPT: secrets.token_hex(8)}
        branches.open_run(catalog, self.run_id, base[SEGMENTS.name], now)

    def change(self, table: Table, commit: Commit) -> None:
        """Commit one snapshot to the run's branch of the table, by calling `commit`.

        Raises:
            Overtaken: another job has closed the run; nothing was published.
        """
        with self._dropping_branches_if_overtaken():
            branches.create_branch(self._catalog, table, self.run_id, self._base[table.name])
            commit(branches.branch_of(self.run_id), dict(self._properties))
            self.pins[table.name] = self._own_head(table)

    def publish(self, commit: Commit, more_properties: Mapping[str, str] | None = None) -> None:
        """Commit the snapshot of `ingested_segments` by calling `commit`, and publish the run.

        `more_properties` are additional properties of this snapshot.

        Raises:
            Overtaken: another run was published since this run's base, or another job has closed this run. Nothing was
                published.
            LeaseLost: another job has taken this job's lease. Nothing was published.
        """
        result = {branches.RESULT: Ingested(self.run_id).to_json()}  # all counts are zero, because nothing was ingested
        properties = self._properties | pins_of(self.pins) | result | dict(more_properties or {})
        with self._dropping_branches_if_overtaken():
            commit(branches.branch_of(self.run_id), properties)
            self.pins[SEGMENTS.name] = self._own_head(SEGMENTS)
            publish(self._catalog, self.run_id, must=True)

    def _own_head(self, table: Table) -> int:
        """The id of the head of the run's branch; raises `Overtaken` unless this run wrote it on top of its base snapshot."""
        head = branches.head_of(self._catalog, table, self.run_id)
        if (
            head is None
            or branches.properties_of(head).get(branches.ATTEMPT) != self._properties[branches.ATTEMPT]
            or head.parent_snapshot_id != self._base[table.name]
        ):
            raise Overtaken(f"another job has closed run {self.run_id}; do it again")
        return head.snapshot_id

    @contextmanager
    def _dropping_branches_if_overtaken(self) -> Iterator[None]:
        """Drop the run's branches if the block shows that the run cannot be published.

        The run's last commit may have recreated a branch that another job had dropped.
        """
        try:
            yield
        except (Overtaken, LeaseLost):
            branches.drop_branches(self._catalog, branches.branch_of(self.run_id))
            raise
