"""Lineage of one run of one job.

The outputs of a run are the tables to whose main this process, or a Spark application of this process, committed during the run.
They do not depend on what the job reports, and commits of other processes at the same time are left out.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.lineage import RunName, run_uuid
from manifold.contracts.tables import Table
from manifold.lake.catalog import open_catalog, tables_of
from manifold.lake.committed import Committed, recording_commits
from manifold.lake.lineage import emit
from manifold.settings import Settings
from pipelines.ingest.branches import ancestors, properties_of
from pipelines.lineage._place import Place
from pipelines.lineage.datasets import changed_table, place, table
from pipelines.lineage.events import ENCLOSING_RUN, Json, RunResult, end_event, start_event

APPLICATION = "app-id"  # property of a snapshot's summary: the id of the Spark application that made the snapshot
MAX_CLOCK_SKEW = timedelta(seconds=60)  # by which a snapshot's timestamp may precede the start of the job that made it
PROBLEM = "it has a problem, which its result names"
ERROR = "{}; the job's log has the rest"  # with the exception's class; its text is left out, because it may contain a VIN

R = TypeVar("R")

log = structlog.get_logger(__name__)


class JobRun:
    """One run of a job. The run begins at construction; `execute` does the work."""

    def __init__(self, settings: Settings, job: str, reads: Sequence[Table | Place], writes: Sequence[Place]) -> None:
        self._settings = settings
        self._reads = reads
        self._writes = writes
        self._began = datetime.now(UTC)
        self._run = RunName(settings.lineage_namespace, f"manifold.{job}", run_uuid(self._began, secrets.token_hex(16)))

    def execute(self, work: Callable[[], R]) -> R:
        """Call `work` between a start event and an end event, and return its result."""
        start = start_event(self._settings, self._run, self._began, self._places(self._reads))
        with self._log_failures():
            emit(self._settings, [start])
        run_result = RunResult.ABORT  # stays so if something other than an `Exception` ends the run, such as SystemExit
        error = ""
        with recording_commits() as commits:
            token = ENCLOSING_RUN.set(self._run)
            try:
                result = work()
                if getattr(result, "problem", None):
                    run_result, error = RunResult.FAIL, PROBLEM
                else:
                    run_result = RunResult.COMPLETE
                return result
            except Exception as exc:
                run_result, error = RunResult.FAIL, ERROR.format(type(exc).__name__)
                raise
            finally:
                ENCLOSING_RUN.reset(token)
                with self._log_failures():
                    self._emit_end(start, run_result, error, commits)

    def _emit_end(self, start: Json, run_result: RunResult, error: str, commits: Committed) -> None:
        """Emit the end event with the tables that the job read and changed. Even a failed job may have changed tables.

        A changed table is an output and, as it was before the job, an input; if the job lists it among the tables that it reads,
        it is an input already.
        """
        inputs = list(start["inputs"])
        outputs = []
        with self._log_failures():
            catalog = open_catalog(self._settings)
            tables = {existing.name: existing for existing in tables_of(catalog)}
            read_tables = [read for read in self._reads if isinstance(read, Table) and read.name in tables]
            read_names = {read.name for read in read_tables}
            inputs += [table(self._settings, catalog.load_table(read.identifier)) for read in read_tables]
            for loaded, snapshots in _changed(catalog, list(tables.values()), commits, self._began - MAX_CLOCK_SKEW):
                if loaded.name()[-1] not in read_names:
                    inputs.append(table(self._settings, loaded, snapshots[0].parent_snapshot_id))
                outputs.append(changed_table(self._settings, loaded, snapshots, snapshots[-1].snapshot_id))
        if run_result is RunResult.COMPLETE:  # for places there are no commits that would tell what a failed job has written
            outputs += self._places(self._writes)
        emit(self._settings, [end_event(start, run_result, datetime.now(UTC), outputs, error, inputs=inputs)])

    def _places(self, datasets: Sequence[Table | Place]) -> list[Json]:
        """The datasets that are not tables, as OpenLineage names them."""
        return [place(self._settings, dataset) for dataset in datasets if not isinstance(dataset, Table)]

    @contextmanager
    def _log_failures(self) -> Iterator[None]:
        """Log an error in the block, and go on after it."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001  # a failure to emit lineage must not fail the job
            reason = type(exc).__name__  # the error's text may contain the catalog's password
            log.warning("lineage of job incomplete", job=self._run.job, run_id=self._run.run_id, reason=reason)


def _changed(
    catalog: Catalog, tables: Sequence[Table], commits: Committed, since: datetime
) -> Iterator[tuple[IcebergTable, list[Snapshot]]]:
    """Yield each changed table with the snapshots that `commits` added to its main at or after `since`, oldest first.

    `commits` has the ids of the snapshots that PyIceberg committed, and for Spark only the ids of its applications.
    """
    since_ms = since.timestamp() * 1000
    committed_ids = {identifier[-1]: set(snapshot_ids) for identifier, snapshot_ids in commits.snapshot_ids.items()}
    for candidate in tables:
        own_ids = committed_ids.get(candidate.name, set())
        if not own_ids and not commits.application_ids:
            continue
        loaded = catalog.load_table(candidate.identifier)
        added: list[Snapshot] = []
        for snapshot in ancestors(loaded):  # newest first
            is_by_pyiceberg = snapshot.snapshot_id in own_ids
            is_by_spark = properties_of(snapshot).get(APPLICATION) in commits.application_ids
            if snapshot.timestamp_ms >= since_ms and (is_by_pyiceberg or is_by_spark):
                added.append(snapshot)
        if added:
            yield loaded, added[::-1]
