"""`manifold lake migrate`: finds the steps that are due, and takes them. Safe to repeat, at once, and beside ingestion. No Spark.

A step is three commits: the new metadata and version, with a note that the step is under way; an empty run, which overtakes runs
that began on the table as it was; and the removal of the note. The run moves main of the table, and a step begins only if main is
where it was when the table was read: a late process never sets the version back, even if a catalog (REST) compares nothing else.
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
from manifold.lake.commits import MAIN, append_nothing, patiently
from manifold.lake.compat import require
from manifold.lake.versions import FIRST, require_not_newer, version_of
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import finish, main_snapshots
from pipelines.migrations.of_tables import STEPS
from pipelines.migrations.steps import Step

MAX_ATTEMPTS = 50  # at a run of one's own, each overtaken by another's

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Due:
    """A step that a table needs."""

    table: str
    version: int  # to which it leads
    step: str
    says: str
    resumed: bool = False  # an earlier migration began it and did not complete it
    seconds: float | None = None  # that it took; None: it was not taken


@dataclass(frozen=True, slots=True)
class Migrated:
    """The steps of a migration that were taken, or are due."""

    steps: list[Due] = field(default_factory=list)
    made: list[str] = field(default_factory=list)  # tables that were missing
    versions: dict[str, int] = field(default_factory=dict)  # by table, now

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def plan(catalog: Catalog) -> Migrated:
    """What `migrate` would do. Nothing is changed.

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
    """Make the tables that are missing, and take every step that is due. `say` hears of each step as it begins.

    Raises:
        Permanent: a table is newer than this code.
        ConcurrentPublish: other runs were published all the time; nothing is lost, do it again.
    """
    made = plan(catalog).made
    make_missing_tables(catalog)
    steps: list[Due] = []
    for table in tables_of(catalog):
        while due := next(_steps_due(loaded := catalog.load_table(table.identifier), table), None):
            version, step = due
            taken = _due(table, version, step, loaded)
            say(f"{table.name}: {step.name} ({step.says()})")
            began = time.monotonic()
            _take(catalog, table, version, step)
            steps.append(Due(**asdict(taken) | {"seconds": round(time.monotonic() - began, 1)}))
            log.info("step is taken", **asdict(steps[-1]))
    return Migrated(steps, made, {t.name: version_of(catalog.load_table(t.identifier)) for t in tables_of(catalog)})


def _steps_due(loaded: IcebergTable, table: Table) -> Iterator[tuple[int, Step]]:
    """(version, step) of the steps that were begun and not completed, and of those that were not begun."""
    require_not_newer(loaded, table)
    version = version_of(loaded)
    for leads_to, step in enumerate(STEPS[table.name], start=FIRST + 1):
        if leads_to > version or MIGRATING + step.name in loaded.properties:
            yield leads_to, step


def _due(table: Table, version: int, step: Step, loaded: IcebergTable) -> Due:
    return Due(table.name, version, step.name, step.says(), resumed=version <= version_of(loaded))


def _take(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    finish(catalog)  # what counts already is best brought to the table as it was
    _begin(catalog, table, version, step)
    _fence(catalog, table)
    _settle(catalog, table, step)


@patiently
def _begin(catalog: Catalog, table: Table, version: int, step: Step) -> None:
    """The metadata, the version, and the note that the step is under way: one commit. Nothing where another has begun it."""
    loaded = catalog.load_table(table.identifier)
    if version_of(loaded) >= version:
        return
    with loaded.transaction() as change:
        unmoved = AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": loaded.metadata.current_snapshot_id})
        require(change, unmoved)
        step.change(change)
        change.set_properties({SCHEMA_VERSION: str(version), MIGRATING + step.name: datetime.now(UTC).isoformat()})


def _fence(catalog: Catalog, table: Table) -> None:
    """A snapshot with the new schema, published as a run; of a table that is no part of runs, on main at once."""
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


@patiently
def _settle(catalog: Catalog, table: Table, step: Step) -> None:
    """Remove the note that the step is under way."""
    loaded = catalog.load_table(table.identifier)
    if MIGRATING + step.name in loaded.properties:
        with loaded.transaction() as change:
            change.remove_properties(MIGRATING + step.name)
