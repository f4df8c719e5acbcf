"""The caching SQL catalog reads each metadata file once and answers like PyIceberg's own."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import InputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import StringType

from manifold.contracts.seq import EPOCH
from manifold.contracts.tables import ERASURES, IDS, SEGMENTS
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.commits import append_rows
from manifold.lake.sql_catalog import CachingSqlCatalog
from manifold.settings import Settings


def row(number: int) -> pa.Table:
    said = {"vin": f"V{number}", "ts": EPOCH, "request_id": "r", "seq": number, "data_id": "d", "applied": True}
    return pa.Table.from_pylist([said], schema=IDS.arrow_schema)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = Settings(home=tmp_path)
    ensure_tables(open_catalog(settings))
    return settings


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that were read."""
    files: list[str] = []
    really = FromInputFile.table_metadata

    def noting(file: InputFile) -> TableMetadata:
        files.append(file.location)
        return really(file)

    monkeypatch.setattr(FromInputFile, "table_metadata", staticmethod(noting))
    return files


def plain(settings: Settings) -> Catalog:
    """PyIceberg's own catalog, which always reads."""
    return SqlCatalog(settings.catalog_name, uri=settings.catalog, warehouse=settings.warehouse_url)


def test_metadata_is_read_once_and_own_commits_are_never_reread(settings: Settings, read: list[str]) -> None:
    catalog = open_catalog(settings)
    assert isinstance(catalog, CachingSqlCatalog)
    for number in range(3):
        catalog.load_table(IDS.identifier)
        append_rows(catalog, IDS, row(number), {})
    assert len(read) == 1
    assert catalog.load_table(IDS.identifier).scan().to_arrow().num_rows == 3
    append_rows(open_catalog(settings), IDS, row(9), {})
    read.clear()
    assert [catalog.load_table(IDS.identifier).scan().to_arrow().num_rows for _ in range(2)] == [4, 4]
    assert len(read) == 1, "a commit of another catalog"


def test_the_cache_matches_the_file_after_any_commit(settings: Settings) -> None:
    catalog = open_catalog(settings)

    def check() -> None:
        known, stands = catalog.load_table(IDS.identifier), plain(settings).load_table(IDS.identifier)
        assert known.metadata_location == stands.metadata_location
        assert known.metadata == stands.metadata
        assert known.metadata.model_dump_json() == stands.metadata.model_dump_json()

    append_rows(catalog, IDS, row(1), {"manifold.run-id": "one"})
    check()
    head = catalog.load_table(IDS.identifier).current_snapshot()
    assert head is not None
    catalog.load_table(IDS.identifier).manage_snapshots().create_branch(head.snapshot_id, "run_1").commit()
    check()
    append_rows(catalog, IDS, row(2), {}, branch="run_1")
    check()
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({"manifold.x": "y"})
        change.remove_properties("write.metadata.previous-versions-max")
    check()
    with catalog.load_table(IDS.identifier).update_schema() as schema:
        schema.add_column("more", StringType())
    check()
    catalog.load_table(IDS.identifier).manage_snapshots().remove_branch("run_1").commit()
    first = min(catalog.load_table(IDS.identifier).snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    catalog.load_table(IDS.identifier).maintenance.expire_snapshots().by_ids([first.snapshot_id]).commit()
    check()


def test_a_conflicting_commit_is_rebased_and_its_first_staged_state_is_dropped(settings: Settings) -> None:
    slow, fast = open_catalog(settings), open_catalog(settings)
    old = slow.load_table(SEGMENTS.identifier)
    with fast.load_table(SEGMENTS.identifier).transaction() as change:
        change.set_properties({"manifold.of": "fast"})
    fast.load_table(IDS.identifier).append(row(1))
    loaded = slow.load_table(IDS.identifier)
    fast.load_table(IDS.identifier).append(row(2))
    loaded.append(row(3))  # PyIceberg retries from the state that it reads then
    for each in (slow, fast, plain(settings)):
        assert sorted(each.load_table(IDS.identifier).scan().to_arrow()["seq"].to_pylist()) == [1, 2, 3]
    assert "manifold.of" not in old.properties
    assert slow.load_table(SEGMENTS.identifier).properties["manifold.of"] == "fast"


def test_a_dropped_and_recreated_table_is_the_new_one(settings: Settings) -> None:
    catalog = open_catalog(settings)
    before = catalog.load_table(ERASURES.identifier).metadata.table_uuid
    open_catalog(settings).drop_table(ERASURES.identifier)
    with pytest.raises(NoSuchTableError):
        catalog.load_table(ERASURES.identifier)
    ensure_tables(open_catalog(settings))
    assert catalog.load_table(ERASURES.identifier).metadata.table_uuid != before
