"""Publication: one compare-and-swap decides whether a run counts; whoever comes next finishes what a dead run left half done.

A run writes at most one snapshot a table, each on the table's branch `run_…`, each made from what main was when the run began.
Its snapshot of `ingested_segments` is written last and names the others (the *pins*). Moving main of `ingested_segments`
from the snapshot with which the run began to this one is the commit point: it fails if another run was faster, and then the run
is to be done again. Afterwards the pinned snapshots are brought to the other mains, by the run itself or by any later one:
main is moved to the snapshot, or, where maintenance has rewritten main meanwhile, the same rows are appended to it.
A run begins by finishing what it finds, so only the newest run can ever be unfinished.

Maintenance that changes what ingest relies on (rows of data, meta, outcomes) has to be a run of its own; rewriting files has not.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, SetSnapshotRefUpdate

from adapters.lake import where
from contracts.errors import OutcomeUnknown, Retryable
from contracts.tables import META, RUN_TABLES, SEGMENTS, Table
from pipelines.ingest.branches import ATTEMPT, PINS, RUN_ID, ancestors, branch_of, close_run, drop_branch, head_of, properties_of
from pipelines.ingest.removal import removes, repeat_removal

MAIN = "main"
TRIES = 60

log = structlog.get_logger(__name__)


class Overtaken(Retryable):
    """Another run was published first. Nothing happened; do the run again."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One table's part of a run."""

    table: Table
    snapshot_id: int


def publish(catalog: Catalog, run_id: str) -> bool:
    """Make the run count, and bring it to every main; false if it has nothing to publish. Doing it again changes nothing.

    Raises:
        Overtaken: another run was published since this one began.
    """
    written = head_of(catalog, SEGMENTS, run_id)
    mine = written is not None and properties_of(written).get(RUN_ID) == run_id
    if is_published(catalog, run_id):
        log.info("run counts already", run_id=run_id)
    elif written is None or not mine or written.parent_snapshot_id is None:
        log.info("run has nothing to publish", run_id=run_id)
        return False
    elif not _move_main(catalog, SEGMENTS, written.parent_snapshot_id, written.snapshot_id):
        raise Overtaken(f"run {run_id} began before another run was published; ingest it again")
    else:
        log.info("run counts from here on", run_id=run_id, snapshot=written.snapshot_id)
    finish(catalog)
    return True


def finish(catalog: Catalog) -> None:
    """Bring the newest run that counts to every main, and drop its branches."""
    newest = next((s for s in ancestors(catalog.load_table(SEGMENTS.identifier)) if PINS in properties_of(s)), None)
    if newest is None:
        return
    run_id = properties_of(newest)[RUN_ID]
    for pinned in pins_in(newest):
        _bring_to_main(catalog, pinned, run_id)
    close_run(catalog, branch_of(run_id))


def is_published(catalog: Catalog, run_id: str) -> bool:
    """Whether the run counts: its snapshot, or, where snapshots have expired, its rows are in main of `ingested_segments`."""
    table = catalog.load_table(SEGMENTS.identifier)
    if any(properties_of(s).get(RUN_ID) == run_id for s in ancestors(table)):
        return True
    return bool(table.scan(where(EqualTo, "run_id", run_id), ("path",), limit=1).to_arrow().num_rows)


def pins_of(snapshots: Mapping[str, int]) -> dict[str, str]:
    """The summary property in which a run names its snapshots, by table name."""
    return {PINS: json.dumps(dict(sorted(snapshots.items())))}


def pins_in(snapshot: Snapshot) -> list[Pinned]:
    """The snapshots that a run's snapshot of `ingested_segments` names."""
    named: dict[str, int] = json.loads(properties_of(snapshot)[PINS])
    return [Pinned(table, named[table.name]) for table in RUN_TABLES if table.name in named]


def _bring_to_main(catalog: Catalog, pinned: Pinned, run_id: str) -> None:
    for _ in range(TRIES):
        table = catalog.load_table(pinned.table.identifier)
        main = table.current_snapshot()
        if any(s.snapshot_id == pinned.snapshot_id or properties_of(s).get(RUN_ID) == run_id for s in ancestors(table)):
            return
        written = table.snapshot_by_id(pinned.snapshot_id)
        if main is None or written is None:
            raise OutcomeUnknown(
                f"{table.name()} has lost snapshot {pinned.snapshot_id} of run {run_id}; restore its metadata, then run again"
            )
        target = written.snapshot_id
        if written.parent_snapshot_id != main.snapshot_id:
            log.info("main was rewritten meanwhile; the run's change is repeated on top", table=pinned.table.name, run_id=run_id)
            target = _repeat(catalog, pinned, written, main, run_id)
        if _move_main(catalog, pinned.table, main.snapshot_id, target):
            return
    raise Retryable(f"{pinned.table.identifier} is being changed all the time; try again")


def _repeat(catalog: Catalog, pinned: Pinned, written: Snapshot, main: Snapshot, run_id: str) -> int:
    """Main was rewritten meanwhile: the same change on top of it, as a snapshot that main can be moved to."""
    name = f"repeat_{secrets.token_hex(4)}"
    table = catalog.load_table(pinned.table.identifier)
    table.manage_snapshots().create_branch(main.snapshot_id, name).commit()
    table = catalog.load_table(pinned.table.identifier)
    said = {RUN_ID: run_id, ATTEMPT: name}
    try:
        if removes(written):
            repeat_removal(table, written, name, said)
        elif pinned.table is META:
            _repeat_merge(table, written, name, said)
        else:
            with table.transaction() as change, change.update_snapshot(said, name).fast_append() as append:
                for file in _added_files(table, written):
                    append.append_data_file(file)
        made = catalog.load_table(pinned.table.identifier).snapshot_by_name(name)
    finally:
        drop_branch(catalog, pinned.table, name)
    assert made is not None  # just made
    return made.snapshot_id


def _added_files(table: IcebergTable, written: Snapshot) -> list[DataFile]:
    return [
        entry.data_file
        for manifest in written.manifests(table.io)
        if manifest.added_snapshot_id == written.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED
    ]


def _repeat_merge(table: IcebergTable, written: Snapshot, branch: str, said: dict[str, str]) -> None:
    """Add to each data_id on `branch` what the run had added to it. Such runs touch few rows, so this need not be fast."""
    before = table.scan(snapshot_id=written.parent_snapshot_id).to_arrow()
    after = table.scan(snapshot_id=written.snapshot_id).to_arrow()
    old = {row["data_id"]: row for row in before.to_pylist()}
    changed = {row["data_id"]: row for row in after.to_pylist() if row != old.get(row["data_id"])}
    here = table.scan(snapshot_id=table.refs()[branch].snapshot_id).to_arrow()
    merged = []
    for row in here.filter(pc.is_in(here["data_id"], pa.array(list(changed), pa.string()))).to_pylist():
        new = changed.pop(row["data_id"])
        seen = new["times_seen"] - old.get(row["data_id"], {"times_seen": 0})["times_seen"]
        first, last = min(row["first_seen_at"], new["first_seen_at"]), max(row["last_seen_at"], new["last_seen_at"])
        merged.append(row | {"first_seen_at": first, "last_seen_at": last, "times_seen": row["times_seen"] + seen})
    rows = pa.Table.from_pylist([*merged, *changed.values()], schema=META.arrow_schema)
    table.upsert(rows, join_cols=list(META.key), branch=branch, snapshot_properties=said)


def _move_main(catalog: Catalog, table: Table, expected: int, target: int) -> bool:
    """Move main from `expected` to `target`; false if it was elsewhere. A lost reply is looked into."""
    for _ in range(TRIES):
        loaded = catalog.load_table(table.identifier)
        main = loaded.current_snapshot()
        if main is not None and main.snapshot_id == target:
            return True
        if main is None or main.snapshot_id != expected:
            return False
        move = SetSnapshotRefUpdate.model_validate({"ref-name": MAIN, "type": "branch", "snapshot-id": target})
        guards = (AssertTableUUID(uuid=loaded.metadata.table_uuid), AssertRefSnapshotId(ref=MAIN, snapshot_id=expected))
        try:
            catalog.commit_table(loaded, guards, (move,))
        except (CommitFailedException, CommitStateUnknownException):
            continue  # main or only another branch has moved, or the reply was lost: the next look tells
        return True
    raise Retryable(f"{table.identifier} is being changed all the time; try again")
