"""The step that fills the index of payloads: `sdv_fanout_meta` has the SHA-1 of every payload and the place of its row."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import Table
from manifold.lake.data_files import write_files
from manifold.lake.payloads import is_filled
from pipelines.migrations.steps import Step

DATA = "sdv_fanout_data"
INDEXED = "manifold.payload-index"
GROUP_ROWS = 8192  # about a MiB of this table: a look-up reads one such group

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PayloadIndex(Step):
    """Fill `sha1` and `stored_at` from the payloads' own rows, and say so; then the payloads need not be looked through any more.

    All of it is one snapshot of a run, made from tables that go together. The names of all payloads are in memory at once, some
    750 bytes each while they are matched (a million: 744 MiB, 8.5 s); the payloads are not read.
    """

    def says(self) -> str:
        """The step in words, for people."""
        return "every payload's SHA-1 and place are written beside its name"

    def write(self, catalog: Catalog, table: Table, base: Mapping[str, int], branch: str, properties: dict[str, str]) -> None:
        """The whole table in new files, sorted by data_id."""
        loaded = catalog.load_table(table.identifier)
        payloads = catalog.load_table(f"{table.identifier.rsplit('.', 1)[0]}.{DATA}")
        had = loaded.scan(snapshot_id=base[table.name])
        named = ("data_id", "sha1", "first_seen_at", "seq")
        rows = indexed(had.to_arrow(), payloads.scan(selected_fields=named, snapshot_id=base[DATA]).to_arrow())
        rows = rows.select(loaded.schema().column_names).cast(loaded.schema().as_arrow())
        with loaded.transaction() as change, change.update_snapshot(properties, branch).overwrite() as files:
            for task in had.plan_files():
                files.delete_data_file(task.file)
            groups = {"write.parquet.row-group-limit": str(GROUP_ROWS)}
            metadata = change.table_metadata.model_copy(update={"properties": change.table_metadata.properties | groups})
            if rows.num_rows:
                for file in write_files(metadata, rows, loaded.io):
                    files.append_data_file(file)

    def settled(self) -> dict[str, str]:
        """From here on ingest and look-ups rely on it."""
        return {INDEXED: "true"}

    def is_undone(self, loaded: IcebergTable) -> bool:
        """Whether a rollback has brought rows back that are not filled, or whoever filled them was killed before it said so."""
        return INDEXED not in loaded.properties or not is_filled(loaded)


def indexed(names: pa.Table, payloads: pa.Table) -> pa.Table:
    """The rows of `names`, each with the `sha1` and `stored_at` of its payload: of several, the one of the lowest seq.

    A payload without a name gets one. A name without a payload goes: it would keep its payload from coming again.
    """
    names, payloads = _plain(names), _plain(payloads)
    by_seq = payloads.sort_by([("data_id", "ascending"), ("seq", "ascending")])
    first = by_seq.group_by("data_id", use_threads=False).aggregate([("sha1", "first"), ("first_seen_at", "first")])
    first = first.rename_columns({"sha1_first": "sha1", "first_seen_at_first": "stored_at"})
    has_payload = pc.is_in(names["data_id"], value_set=first["data_id"])
    rows = names.drop_columns(["sha1", "stored_at"]).filter(has_payload).join(first, "data_id", join_type="right outer")
    nameless = pc.sum(pc.is_null(rows["times_seen"])).as_py()
    gone = names.num_rows - pc.sum(has_payload).as_py() if names.num_rows else 0
    for column, value in {"first_seen_at": rows["stored_at"], "last_seen_at": rows["stored_at"], "times_seen": 1}.items():
        rows = rows.set_column(rows.column_names.index(column), column, pc.coalesce(rows[column], value))
    log.info("payloads are indexed", payloads=first.num_rows, nameless=nameless or 0, gone=gone)
    return rows.sort_by("data_id")


def _plain(rows: pa.Table) -> pa.Table:
    """The same with Arrow's usual strings; joined columns have to be of one type."""
    fields = [field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(fields))
