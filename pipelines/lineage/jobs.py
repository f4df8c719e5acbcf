"""Lineage of one run of one job.

Its outputs are the commits on main by this process and its Spark applications, whatever the job itself reports. Concurrent
commits of other processes are not counted.
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
from manifold.lake.committed import Committed, watching
from manifold.lake.lineage import emit
from manifold.settings import Settings
from pipelines.ingest.branches import ancestors, properties_of
from pipelines.lineage._place import Place
from pipelines.lineage.datasets import place, table, written
from pipelines.lineage.events import UNDER, Ended, Json, begun, ended

APPLICATION = "app-id"  # in a snapshot's summary: the Spark application that made it
CLOCKS = timedelta(seconds=60)  # clock skew: a snapshot may seem this much older than the job that makes it
PROBLEM = "it has a problem, which its result names"
ERROR = "{}; the job's log has the rest"  # the exception's text may name a vehicle

R = TypeVar("R")

log = structlog.get_logger(__name__)


class JobRun:
    """One run of a job, which begins at construction; `of` does the work."""

    def __init__(self, settings: Settings, job: str, reads: Sequence[Table | Place], writes: Sequence[Place]) -> None:
        self._settings, self._reads, self._writes = settings, reads, writes
        self._began = datetime.now(UTC)
        self._run = RunName(settings.lineage_namespace, f"manifold.{job}", run_uuid(self._began, secrets.token_hex(16)))

    def of(self, work: Callable[[], R]) -> R:
        """Run `work` and return its result, emitting its start and its end."""
        start = begun(self._settings, self._run, self._began, self._places(self._reads))
        with self._log_failures():
            emit(self._settings, [start])
        how, why = Ended.ABORT, ""
        with watching() as seen:
            outer = UNDER.set(self._run)
            try:
                result = work()
                how, why = (Ended.FAIL, PROBLEM) if getattr(result, "problem", None) else (Ended.COMPLETE, "")
                return result
            except Exception as exc:
                how, why = Ended.FAIL, ERROR.format(type(exc).__name__)
                raise
            finally:
                UNDER.reset(outer)
                with self._log_failures():
                    self._end(start, how, why, seen)

    def _end(self, start: Json, how: Ended, why: str, seen: Committed) -> None:
        """Emit the end event, with the tables that the job changed, even if it failed."""
        inputs, outputs = list(start["inputs"]), []
        with self._log_failures():
            catalog = open_catalog(self._settings)
            tables = {each.name: each for each in tables_of(catalog)}
            read = [each for each in self._reads if isinstance(each, Table) and each.name in tables]
            inputs += [table(self._settings, catalog.load_table(each.identifier)) for each in read]
            for loaded, snapshots in _changed(catalog, list(tables.values()), seen, self._began - CLOCKS):
                if loaded.name()[-1] not in {each.name for each in read}:
                    inputs.append(table(self._settings, loaded, snapshots[0].parent_snapshot_id))
                outputs.append(written(self._settings, loaded, snapshots, snapshots[-1].snapshot_id))
        if how is Ended.COMPLETE:
            outputs += self._places(self._writes)
        emit(self._settings, [ended(start, how, datetime.now(UTC), outputs, why, inputs=inputs)])

    def _places(self, named: Sequence[Table | Place]) -> list[Json]:
        return [place(self._settings, each) for each in named if not isinstance(each, Table)]

    @contextmanager
    def _log_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # noqa: BLE001  # the job is done, with or without lineage
            log.warning("lineage of a job incomplete", job=self._run.job, reason=type(exc).__name__)


def _changed(
    catalog: Catalog, tables: Sequence[Table], seen: Committed, since: datetime
) -> Iterator[tuple[IcebergTable, list[Snapshot]]]:
    """The changed tables, each with the snapshots added to its main, oldest first."""
    ours = {name[-1]: set(snapshots) for name, snapshots in seen.mains.items()}
    for each in tables:
        if not seen.applications and each.name not in ours:
            continue
        loaded, mine = catalog.load_table(each.identifier), ours.get(each.name, set())
        recent = [snapshot for snapshot in ancestors(loaded) if snapshot.timestamp_ms >= since.timestamp() * 1000]
        made = [s for s in recent if s.snapshot_id in mine or properties_of(s).get(APPLICATION) in seen.applications]
        if made:
            yield loaded, made[::-1]
