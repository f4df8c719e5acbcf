"""A run's branches: where its rows wait until they are judged and published."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ManageSnapshots
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from contracts.tables import RUN_TABLES, SEGMENTS, Table

PREFIX = "run_"
RUN_ID = "manifold.run-id"  # property of every snapshot that a run writes
ATTEMPT = "manifold.attempt"  # tells two attempts at one run apart
PINS = "manifold.pins"  # of `ingested_segments` only: table → snapshot
BEGAN = "manifold.began."  # table property of `ingested_segments`, + branch: when an open run began
RESULT = "manifold.result"  # of `ingested_segments` only: the run's numbers
ABANDONED_AFTER = timedelta(days=1)

_patiently = retry(
    retry=retry_if_exception_type(CommitFailedException), stop=stop_after_attempt(30), wait=wait_random(0.01, 0.3), reraise=True
)


def branch_of(run_id: str) -> str:
    """The branch's name; a run id may hold what a name in SQL may not."""
    plain = re.sub(r"\W", "_", run_id, flags=re.ASCII)
    return PREFIX + (plain if plain == run_id else f"{plain}_{hashlib.sha256(run_id.encode()).hexdigest()[:8]}")


def properties_of(snapshot: Snapshot) -> dict[str, str]:
    """What the snapshot's writer said about it."""
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def ancestors(table: IcebergTable) -> Iterator[Snapshot]:
    """Main's snapshots, newest first, as far back as they are kept."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None


def head_of(catalog: Catalog, table: Table, run_id: str) -> Snapshot | None:
    """The newest snapshot on the run's branch; None without a branch."""
    return catalog.load_table(table.identifier).snapshot_by_name(branch_of(run_id))


@_patiently
def open_run(catalog: Catalog, run_id: str, snapshot_id: int, now: datetime) -> None:
    """Begin the run: its branch of `ingested_segments` at `snapshot_id`, and a note of when. This branch is dropped last."""
    with catalog.load_table(SEGMENTS.identifier).transaction() as change:
        change.set_properties({BEGAN + branch_of(run_id): now.isoformat()})
        ManageSnapshots(change).create_branch(snapshot_id, branch_of(run_id)).commit()


@_patiently
def create_branch(catalog: Catalog, table: Table, run_id: str, snapshot_id: int) -> None:
    """Begin the run's branch of `table` at `snapshot_id`."""
    catalog.load_table(table.identifier).manage_snapshots().create_branch(snapshot_id, branch_of(run_id)).commit()


@_patiently
def append_rows(catalog: Catalog, table: Table, rows: pa.Table, said: Mapping[str, str]) -> None:
    """Append to main at once, whoever else does: for tables that are no part of a run's publication."""
    catalog.load_table(table.identifier).append(rows, snapshot_properties=dict(said))


def close_run(catalog: Catalog, branch: str) -> None:
    """Drop the branch of every table, where there is one. Snapshots that main has stay."""
    for table in RUN_TABLES:
        if table is not SEGMENTS:
            drop_branch(catalog, table, branch)
    _forget(catalog, branch)


@_patiently
def drop_branch(catalog: Catalog, table: Table, branch: str) -> None:
    """Drop one branch of one table, if it is there."""
    loaded = catalog.load_table(table.identifier)
    if branch in loaded.refs():
        loaded.manage_snapshots().remove_branch(branch).commit()


@_patiently
def _forget(catalog: Catalog, branch: str) -> None:
    segments = catalog.load_table(SEGMENTS.identifier)
    with segments.transaction() as change:
        if BEGAN + branch in segments.properties:
            change.remove_properties(BEGAN + branch)
        if branch in segments.refs():
            ManageSnapshots(change).remove_branch(branch).commit()


def close_abandoned(catalog: Catalog, now: datetime) -> list[str]:
    """Drop the branches of runs that began more than a day ago and were never published; their names."""
    properties = catalog.load_table(SEGMENTS.identifier).properties
    began = {name.removeprefix(BEGAN): datetime.fromisoformat(at) for name, at in properties.items() if name.startswith(BEGAN)}
    abandoned = [branch for branch, at in began.items() if now - at > ABANDONED_AFTER]
    for branch in abandoned:
        close_run(catalog, branch)
    return abandoned
