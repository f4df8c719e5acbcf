"""Snapshots that replace all rows of some days: writing one, and repeating it on a main that was rewritten meanwhile."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table.snapshots import Snapshot

from manifold.contracts.tables import Table
from manifold.lake.commits import patiently
from manifold.lake.compat import write_data_files
from pipelines.ingest.branches import properties_of
from pipelines.ingest.removal import days_of

REMAKES_DAYS = "manifold.remakes-days"  # property of such a snapshot: a JSON array of the days


def remakes(written: Snapshot) -> bool:
    """Whether this snapshot makes days again."""
    return REMAKES_DAYS in properties_of(written)


@patiently
def remake_days(
    catalog: Catalog,
    table: Table,
    days: Collection[date],
    pieces: Callable[[], Iterable[pa.Table]],
    branch: str,
    properties: dict[str, str],
) -> None:
    """One snapshot on the branch in which `pieces` stand for the files of these days; each call of it gives all rows once."""
    loaded, wanted = catalog.load_table(table.identifier), set(days)
    head = loaded.refs()[branch].snapshot_id
    old = [task.file for task in loaded.scan(snapshot_id=head).plan_files() if wanted.intersection(days_of(loaded, task.file))]
    named = properties | {REMAKES_DAYS: json.dumps(sorted(day.isoformat() for day in wanted))}
    with loaded.transaction() as change, change.update_snapshot(named, branch).overwrite() as files:
        for file in old:
            files.delete_data_file(file)
        for piece in pieces():
            if piece.num_rows:
                for file in write_data_files(change.table_metadata, piece, loaded.io):
                    files.append_data_file(file)


def repeat_remaking(catalog: Catalog, table: Table, written: Snapshot, branch: str, properties: dict[str, str]) -> None:
    """Put on `branch` the days as `written` has them: whoever has rewritten main meanwhile has changed no row."""
    loaded = catalog.load_table(table.identifier)
    days = [date.fromisoformat(day) for day in json.loads(properties_of(written)[REMAKES_DAYS])]

    def pieces() -> Iterator[pa.Table]:
        for task in loaded.scan(snapshot_id=written.snapshot_id).plan_files():
            if set(days).intersection(days_of(loaded, task.file)):
                rows = ArrowScan(loaded.metadata, loaded.io, loaded.schema(), AlwaysTrue()).to_table([task])
                yield rows.select(table.arrow_schema.names).cast(table.arrow_schema)

    remake_days(catalog, table, days, pieces, branch, properties)
