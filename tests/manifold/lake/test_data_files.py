"""Files of a table that one process writes and another commits, over a real SQLite catalog."""

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile

from manifold.contracts.errors import Retryable
from manifold.contracts.tables import IDS, Table
from manifold.lake.commits import append_nothing, append_rows
from manifold.lake.data_files import CODEC, GROUP_BYTES, DataFiles, append_files

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
A_DAY = timedelta(days=1)


def entries(*instants: datetime, vin: str = "V1") -> pa.Table:
    rows = [
        {"vin": vin, "ts": ts, "request_id": "r", "seq": seq, "data_id": "d", "applied": True} for seq, ts in enumerate(instants)
    ]
    return pa.Table.from_pylist(rows, schema=IDS.arrow_schema)


def written(catalog: Catalog, rows: pa.Table, table: Table = IDS) -> list[DataFile]:
    """As a worker writes them and tells of them."""
    files = pickle.loads(pickle.dumps(DataFiles.of(catalog.load_table(table.identifier), level=1)))
    found: list[DataFile] = pickle.loads(pickle.dumps(files.write(rows)))
    return found


def parquet(file: DataFile) -> pq.FileMetaData:
    return pq.read_metadata(file.file_path.removeprefix("file://"))


def test_rows_lie_in_a_file_a_day_and_count_with_the_commit(catalog: Catalog) -> None:
    files = written(catalog, entries(NOON, NOON + A_DAY, NOON))
    loaded = catalog.load_table(IDS.identifier)
    assert sorted((file.record_count, file.partition[0]) for file in files) == [(1, 20514), (2, 20513)]
    assert loaded.scan().to_arrow().num_rows == 0

    append_files(catalog, IDS, files, {"manifold.run-id": "r"})
    loaded = catalog.load_table(IDS.identifier)
    assert sorted(loaded.scan().to_arrow()["seq"].to_pylist()) == [0, 1, 2]
    assert loaded.scan("ts >= '2026-03-02T00:00:00+00:00'").to_arrow()["seq"].to_pylist() == [1]
    (snapshot,) = [s for s in loaded.snapshots() if s.summary and s.summary["manifold.run-id"] == "r"]
    assert snapshot.summary is not None
    assert (snapshot.summary["added-records"], snapshot.summary["added-data-files"]) == ("3", "2")


def test_no_rows_are_no_file_and_a_snapshot_all_the_same(catalog: Catalog) -> None:
    before = len(catalog.load_table(IDS.identifier).snapshots())
    assert written(catalog, entries()) == []
    append_files(catalog, IDS, [], {})
    assert len(catalog.load_table(IDS.identifier).snapshots()) == before + 1


def test_row_groups_are_as_small_as_the_table_asks_for(catalog: Catalog) -> None:
    many = entries(*[NOON] * 4000)
    (file,) = written(catalog, many)
    assert parquet(file).num_row_groups == 1
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({GROUP_BYTES: str(many.nbytes // 8)})
    (file,) = written(catalog, many)
    assert parquet(file).num_row_groups in {8, 9}


@pytest.mark.parametrize("codec", ["zstd", "gzip", "snappy", "lz4", "uncompressed", "brotli"])
def test_a_table_is_written_with_the_codec_that_it_asks_for(catalog: Catalog, codec: str) -> None:
    """Arrow refuses a level for a codec that has none."""
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({CODEC: codec})
    (file,) = written(catalog, entries(NOON))
    assert parquet(file).row_group(0).column(0).compression == codec.upper()


@pytest.mark.parametrize("text", ["\ud7ff", "\uffff", "\U0010ffff", "\U0010ffff" * 20, "é", "🚗"])
def test_any_text_is_written_and_found_by_its_bounds(catalog: Catalog, text: str) -> None:
    """A bound is cut after 16 characters and raised; what follows U+D7FF in Unicode is no character."""
    values = [f"{'a' * 15}{text}{'b' * 5}", f"{text * 16}b", f"{'a' * 15}{text}"]
    for value in values:
        append_files(catalog, IDS, written(catalog, entries(NOON, vin=value)), {})
    append_rows(catalog, IDS, entries(NOON, vin=values[0]), {})
    loaded = catalog.load_table(IDS.identifier)
    assert [loaded.scan(EqualTo(term="vin", value=value)).to_arrow().num_rows for value in values] == [2, 1, 1]


def test_what_is_sent_to_workers_does_not_grow_with_the_tables_history(catalog: Catalog) -> None:
    def size() -> int:
        return len(pickle.dumps(DataFiles.of(catalog.load_table(IDS.identifier), level=1)))

    append_nothing(catalog, IDS, "main", {})
    young = size()
    for _ in range(20):
        append_nothing(catalog, IDS, "main", {})
    assert size() < young + 100


def test_files_of_other_partitions_are_not_committed(catalog: Catalog) -> None:
    """A file's manifest would say that it lies in a partition of the new kind."""
    files = written(catalog, entries(NOON))
    with catalog.load_table(IDS.identifier).update_spec() as spec:
        spec.remove_field("ts_day")
    with pytest.raises(Retryable, match="other partitions"):
        append_files(catalog, IDS, files, {})
    assert catalog.load_table(IDS.identifier).scan().to_arrow().num_rows == 0


def test_removed_files_are_gone_and_those_that_are_gone_already_are_no_error(catalog: Catalog) -> None:
    files = written(catalog, entries(NOON, NOON + A_DAY))
    target = DataFiles.of(catalog.load_table(IDS.identifier), level=1)
    target.remove(files[:1])
    target.remove(files)
    assert [Path(file.file_path.removeprefix("file://")).exists() for file in files] == [False, False]
