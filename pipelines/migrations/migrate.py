"""`manifold lake migrate`: finds the steps that are due and takes them. Safe to repeat, concurrently and beside ingest. No Spark.

A step is three commits: the new metadata and version, with a note that the step is in progress; an empty run, which overtakes
runs that began on the old table; and the removal of the note. The run moves main of the table, and a step begins only if main is
where it was when the table was read: a delayed process never sets the version back, even if a REST catalog compares nothing else.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import AssertRefSnapshotId

from manifold.contracts.tables import EVERY_RUN_TABLE, MIGRATING, SCHEMA_VERSION, SEGMENTS, Table
from manifold.lake.catalog import make_missing_tables, tables_of
from manifold.lake.commits import MAIN, append_nothing, retry_conflicts
from manifold.lake.compat import require
from manifold.lake.versions import FIRST, require_not_newer, version_of
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import finish_committed_runs, main_snapshots
from pipelines.migrations.of_tables import STEPS
from pipelines.migrations.steps import Step

MAX_ATTEMPTS = 50  # at publishing the empty run, while other runs are published first

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """A step that a table needs."""

    table: str
    version: int  # that it leads to
    step: str
    says: str
    resumed: bool = False  # begun, but not completed, by an earlier migration
    seconds: float | None = None  # duration; None: it was not taken


@dataclass(frozen=True, slots=True)
class Migrated:
    """Steps of a migration that were taken, or are due."""

    steps: list[Due] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # missing tables that were created, or would be
    versions: dict[str, int] = field(default_factory=dict)  # current, by table

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def plan(catalog: Catalog) -> Migrated:
    """Return what `migrate` would do, without changing anything.

    Raises:
        Permanent: a table is newer than this code.
    """
    steps: list[Due] = []
    made: list[str] = []
    versions: dict[str, int] = {}
    for table in tables_of(catalog):
        try:
            loaded = catalog.load_table(table.identifier)
        except NoSuchTableError:
            made.append(table.name)
            continue
        versions[table.name] = version_of(loaded)
        steps += [_due(table, version, step, loaded) for version, step in _steps_due(loaded, table)]
    return Migrated(steps, made, versions)


def migrate(catalog: Catalog, *, say: Callable[[str], None] = lambda _: None) -> Migrated:
    """Create missing tables, and take every step that is due. `say` is called with each step as it begins.

    Raises:
        Permanent: a table is newer than this code.
        ConcurrentPublish: other runs kept being published first; nothing is lost, run it again.
    """
    made = plan(catalog).made
    make_missing_tables(catalog)
    steps: list[Due] = []
    for table in tables_of(catalog):
        while due := next(_steps_due(loaded := catalog.load_table(table.identifier), table), None):
            version, step = due
            taken = _due(table, version, step, loaded)
            say(f"{table.name}: {step.name} ({step.describe()})")
            began = time.monotonic()
            _take(catalog, table, version, step)
            steps.append(Due(**asdict(taken) | {"seconds": round(time.monotonic() - began, 1)}))
            log.info("migration step done", **asdict(steps[-1]))
    return Migrated(steps, made, {t.name: version_of(catalog.load_table(t.identifier)) for t in tables_of(catalog)})


def _steps_due(loaded: IcebergTable, table: Table) -> Iterator[tuple[int, Step]]:
    """(version, step) of the steps that are in progress or not begun."""
    require_not_newer(loaded, table)
    version = version_of(loaded)
    for leads_to, step in enumerate(STEPS[table.name], start=FIRST + 1):
        if leads_to > version or MIGRATING + step.name in loaded.properties:
            yield leads_to, step


def _due(table: Table, version: int, step: Step, loaded: IcebergTable) -> Due:
    return Due(table.name, version, step.name, step.describe(), resumed=version <= version_of(loaded))


def _take(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    finish_committed_runs(catalog)  # committed runs are best brought to the old table
    _begin(catalog, table, version, step)
    _fence(catalog, table)
    _settle(catalog, table, step)


@retry_conflicts
def _begin(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    """Commit metadata, version and the in-progress note at once; no effect if another process has begun the step."""
    loaded = catalog.load_table(table.identifier)
    if version_of(loaded) >= version:
        return
    with loaded.transaction() as change:
        unmoved = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": loaded.metadata.current_snapshot_id})
        require(change, unmoved)
        step.change(change)
        change.set_properties({SCHEMA_VERSION: str(version), MIGRATING + step.name: datetime.now(UTC).isoformat()})


def _fence(catalog: Catalog, table: Table) -> None:
    """Publish a snapshot with the new schema as a run; for a table outside runs, commit it to main directly."""
    if table not in EVERY_RUN_TABLE:
        append_nothing(catalog, table, MAIN, {})
        return
    until_not_overtaken(MAX_ATTEMPTS)(lambda: _fence_run(catalog, table))


def _fence_run(catalog: Catalog, table: Table) -> None:
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "migrate", base, datetime.now(UTC))
    if table is not SEGMENTS:
        run.change(table, partial(append_nothing, catalog, table))
    run.publish(partial(append_nothing, catalog, SEGMENTS))


@retry_conflicts
def _settle(catalog: Catalog, table: Table, step: Step) -> None:
    """Remove the in-progress note."""
    loaded = catalog.load_table(table.identifier)
    if MIGRATING + step.name in loaded.properties:
        with loaded.transaction() as change:
            change.remove_properties(MIGRATING + step.name)
