"""Snapshots that remove rows: what they say of themselves, and how one is repeated where main was rewritten meanwhile."""

from pyiceberg.expressions import In
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Snapshot

from pipelines.ingest.branches import properties_of

REMOVES = "manifold.removes"  # property of such a snapshot: the column by which rows were named


def removes(written: Snapshot) -> str | None:
    """The column by which this snapshot removes rows; None if it does not."""
    return properties_of(written).get(REMOVES)


def repeat_removal(table: IcebergTable, written: Snapshot, branch: str, said: dict[str, str]) -> None:
    """Remove from `branch` the rows that `written` has removed from its parent."""
    column = properties_of(written)[REMOVES]
    before, after = (
        set(table.scan(selected_fields=(column,), snapshot_id=at).to_arrow()[column].to_pylist())
        for at in (written.parent_snapshot_id, written.snapshot_id)
    )
    gone = In(term=column, literals=before - after)
    table.delete(gone, snapshot_properties=said | {REMOVES: column}, branch=branch)
