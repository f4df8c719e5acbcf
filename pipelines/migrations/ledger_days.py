"""The step that partitions the ledger: each row of `ingested_segments` gets the start of its segment, and its day."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import IsNull
from pyiceberg.table import Table as IcebergTable

from manifold.archive.segment import began_at
from manifold.contracts.tables import INSTANT, Table
from manifold.lake.data_files import write_files
from pipelines.migrations.steps import PartitionBy

BEGAN_AT, FIELD = "began_at", "began_at_day"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LedgerDays(PartitionBy):
    """Partition by day, and write the rows again, with the instant that follows from each path; some at a time."""

    def write(self, catalog: Catalog, table: Table, base: Mapping[str, int], branch: str, properties: dict[str, str]) -> None:
        """The whole table in new files."""
        loaded = catalog.load_table(table.identifier)
        had, rows = loaded.scan(snapshot_id=base[table.name]), 0
        schema = loaded.schema().as_arrow()
        with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
            for task in had.plan_files():
                files.delete_data_file(task.file)
            for batch in had.to_arrow_batch_reader():
                told = dated(pa.Table.from_batches([batch]), schema)
                rows += told.num_rows
                for file in write_files(change.table_metadata, told, loaded.io):
                    files.append_data_file(file)
        log.info("the ledger has days", rows=rows)

    def is_undone(self, loaded: IcebergTable) -> bool:
        """Whether a rollback has brought rows back that say no day. Only the files' own counts are read."""
        with_days = {number for number, spec in loaded.specs().items() if any(f.name == FIELD for f in spec.fields)}
        if loaded.spec().spec_id not in with_days:
            return False
        return any(task.file.spec_id not in with_days for task in loaded.scan(IsNull(term=BEGAN_AT)).plan_files())


def dated(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows with all columns of the schema; each says when its segment began, where its path tells."""
    instants = pa.array([began_at(path) for path in rows["path"].to_pylist()], INSTANT)
    has = {name: rows[name] for name in rows.column_names} | {BEGAN_AT: instants}
    return pa.table({name: has.get(name, pa.nulls(rows.num_rows)) for name in schema.names}).cast(schema)
