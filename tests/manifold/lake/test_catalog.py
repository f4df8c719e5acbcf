"""The lake without Spark: a real SQLite catalog and real files in a temporary folder."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.seq import datetime_of, seq_of
from manifold.contracts.tables import IDS, TABLES
from manifold.lake.catalog import _prepare_sqlite, ensure_tables, open_catalog
from manifold.lake.reads import read_trigger
from manifold.settings import Settings
from tests.support.lake_rows import append, new_lake

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def catalog(settings: Settings) -> Catalog:
    return new_lake(settings)


def seq_at(instant: datetime, counter: int = 0) -> int:
    return seq_of(int(instant.timestamp() * 1000), 0, counter)


def ids_row(seq: int, vin: str = "V1") -> dict[str, object]:
    return {"vin": vin, "ts": datetime_of(seq), "request_id": f"task_a_{seq & 7}", "seq": seq, "data_id": "d", "applied": True}


def test_every_table_exists_with_its_columns_and_a_first_snapshot(catalog: Catalog) -> None:
    for table in TABLES:
        made = catalog.load_table(table.identifier)
        assert made.current_snapshot() is not None
        assert made.format_version == 2
        assert [f.name for f in made.schema().fields] == [c.name for c in table.columns]
        assert [f.required for f in made.schema().fields] == [c.required for c in table.columns]
        assert made.schema().identifier_field_names() == set(table.key)
        assert [f.name for f in made.spec().fields] == ([] if table.day_of is None else [f"{table.day_of}_day"])


def test_creating_the_tables_again_changes_nothing_and_leaves_no_file(catalog: Catalog, tmp_path: Path) -> None:
    before = {t.name: catalog.load_table(t.identifier).metadata_location for t in TABLES}
    files = set((tmp_path / "lake" / "warehouse").rglob("*"))
    ensure_tables(catalog)
    assert {t.name: catalog.load_table(t.identifier).metadata_location for t in TABLES} == before
    assert set((tmp_path / "lake" / "warehouse").rglob("*")) == files


def test_two_processes_create_the_same_tables_concurrently(settings: Settings) -> None:
    def make(_: int) -> None:
        ensure_tables(open_catalog(settings))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, range(2)))
    catalog = open_catalog(settings)
    assert all(catalog.load_table(t.identifier).current_snapshot() is not None for t in TABLES)


def test_two_processes_create_the_catalog_file_concurrently(tmp_path: Path) -> None:
    """SQLite refuses one of two connections that change a new file's mode at the same time, without waiting."""
    both = Barrier(2)

    def make(file: Path) -> None:
        both.wait()
        _prepare_sqlite(file)

    with ThreadPoolExecutor(2) as pool:
        for number in range(200):
            file = tmp_path / f"{number}.db"
            list(pool.map(make, [file, file]))
            with closing(sqlite3.connect(file)) as connection:
                assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_entry_is_found_by_vehicle_and_seq(catalog: Catalog) -> None:
    seq = seq_at(NOON, 3)
    append(catalog, IDS, [ids_row(seq)])
    assert read_trigger(catalog, "V1", seq) == EntryTrigger(f"task_a_{seq & 7}", "d")
    assert read_trigger(catalog, "V2", seq) is None
    assert read_trigger(catalog, "V1", seq + 1) is None
