"""`manifold lake migrate`: finds the steps that are due and takes them. No Spark.

Migrations may be repeated, and may run concurrently with each other and with ingest. A step is three commits: the first changes
the metadata and the version, and marks the step as in progress; the second publishes an empty run, which overtakes runs that
began on the old table; the third removes the mark.

The empty run moves the table's main, and the first commit requires that main has not moved since the table was read. So a delayed
process cannot set the version back, even with a REST catalog that compares nothing else.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
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
from manifold.lake.compat import add_requirement
from manifold.lake.versions import FIRST_VERSION, require_not_newer, version_of
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import finish_committed_runs, main_snapshots
from pipelines.migrations.of_tables import STEPS
from pipelines.migrations.steps import Step

MAX_PUBLISH_ATTEMPTS = 50  # to publish the empty run; an attempt fails if another run is published first

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """A step that a table needs."""

    table: str
    version: int  # the table's version after the step
    step: str
    says: str  # the step's description
    resumed: bool = False  # whether an earlier migration began the step and did not complete it
    seconds: float | None = None  # duration; None if the step was not taken


@dataclass(frozen=True, slots=True)
class Migrated:
    """The result of `migrate` (what was done) or of `plan` (what is to be done)."""

    steps: list[Due] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # missing tables that were created, or that `migrate` would create
    versions: dict[str, int] = field(default_factory=dict)  # the current version of each table

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def plan(catalog: Catalog) -> Migrated:
    """Return what `migrate` would do, without changing anything.

    Raises:
        Permanent: a table is newer than this code.
    """
    steps: list[Due] = []
    missing: list[str] = []
    versions: dict[str, int] = {}
    for table in tables_of(catalog):
        try:
            loaded = catalog.load_table(table.identifier)
        except NoSuchTableError:
            missing.append(table.name)
            continue
        versions[table.name] = version_of(loaded)
        steps += [_due(table, version, step, loaded) for version, step in _steps_due(loaded, table)]
    return Migrated(steps, missing, versions)


def migrate(catalog: Catalog, *, say: Callable[[str], None] = lambda _: None) -> Migrated:
    """Create missing tables, and take every step that is due. Before each step, `say` is called with a text that names it.

    Raises:
        Permanent: a table is newer than this code.
        Overtaken: other runs kept being published first. Steps taken so far stay taken; run it again.
    """
    made = plan(catalog).made
    make_missing_tables(catalog)
    steps: list[Due] = []
    versions: dict[str, int] = {}
    for table in tables_of(catalog):
        loaded = catalog.load_table(table.identifier)
        next_step = next(_steps_due(loaded, table), None)
        while next_step is not None:
            version, step = next_step
            due = _due(table, version, step, loaded)
            say(f"{table.name}: {step.name} ({step.describe()})")
            began = time.monotonic()
            _take_step(catalog, table, version, step)
            taken = replace(due, seconds=round(time.monotonic() - began, 1))
            steps.append(taken)
            log.info(
                "migration step of table taken",
                table=taken.table,
                version=taken.version,
                step=taken.step,
                description=taken.says,
                resumed=taken.resumed,
                seconds=taken.seconds,
            )
            loaded = catalog.load_table(table.identifier)  # the step has changed the table
            next_step = next(_steps_due(loaded, table), None)
        versions[table.name] = version_of(loaded)
    return Migrated(steps, made, versions)


def _steps_due(loaded: IcebergTable, table: Table) -> Iterator[tuple[int, Step]]:
    """Yield (version after the step, step) for each step that was not begun, or was begun and not completed.

    Raises:
        Permanent: the table is newer than this code.
    """
    require_not_newer(loaded, table)
    current_version = version_of(loaded)
    for step_version, step in enumerate(STEPS[table.name], start=FIRST_VERSION + 1):
        is_in_progress = MIGRATING + step.name in loaded.properties
        if step_version > current_version or is_in_progress:
            yield step_version, step


def _due(table: Table, version: int, step: Step, loaded: IcebergTable) -> Due:
    """Describe the step to `version`. It was begun before if the table has that version already."""
    has_begun = version <= version_of(loaded)
    return Due(table.name, version, step.name, step.describe(), resumed=has_begun)


def _take_step(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    """Take one step, or complete a step that was begun before."""
    finish_committed_runs(catalog)  # their branches were written for the old schema
    _begin_step(catalog, table, version, step)
    _overtake_open_runs(catalog, table)
    _complete_step(catalog, table, step)


@retry_conflicts
def _begin_step(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    """Change the metadata and the version, and mark the step as in progress, in one commit.

    If another process has begun the step, nothing is changed.
    """
    loaded = catalog.load_table(table.identifier)
    if version_of(loaded) >= version:
        return
    with loaded.transaction() as transaction:
        main_unmoved = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": loaded.metadata.current_snapshot_id})
        add_requirement(transaction, main_unmoved)  # otherwise a delayed process could set the version back
        step.change(transaction)
        transaction.set_properties({SCHEMA_VERSION: str(version), MIGRATING + step.name: datetime.now(UTC).isoformat()})


def _overtake_open_runs(catalog: Catalog, table: Table) -> None:
    """Publish an empty run, so that runs that began on the old table are overtaken and start again.

    A table that no run writes gets an empty commit on main instead.
    """
    if table not in EVERY_RUN_TABLE:
        append_nothing(catalog, table, MAIN, {})
        return
    until_not_overtaken(MAX_PUBLISH_ATTEMPTS)(lambda: _publish_empty_run(catalog, table))


def _publish_empty_run(catalog: Catalog, table: Table) -> None:
    """Publish a run that adds an empty snapshot, with the table's new schema, to the table and to the ledger."""
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "migrate", base, datetime.now(UTC))
    if table is not SEGMENTS:
        run.change(table, partial(append_nothing, catalog, table))
    run.publish(partial(append_nothing, catalog, SEGMENTS))


@retry_conflicts
def _complete_step(catalog: Catalog, table: Table, step: Step) -> None:
    """Remove the property that marks the step as in progress."""
    loaded = catalog.load_table(table.identifier)
    if MIGRATING + step.name in loaded.properties:
        with loaded.transaction() as transaction:
            transaction.remove_properties(MIGRATING + step.name)
