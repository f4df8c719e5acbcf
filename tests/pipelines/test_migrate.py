"""Lakes of every earlier release become what a new lake is, with all that they hold."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.seq import EPOCH, datetime_of
from manifold.contracts.tables import DATA, EVERY_TABLE, META, SCHEMA_VERSION, SEGMENTS, TABLES, Table
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.lake.payloads import read_payloads
from manifold.settings import Settings
from pipelines.migrations.migrate import migrate, plan
from pipelines.migrations.of_tables import STEPS
from tests.pipelines.makers import at
from tests.pipelines.old_lakes import RELEASES, add, fill, make_old, name_row, payload_row


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return open_catalog(Settings(home=tmp_path / "old"))


@pytest.fixture
def fresh(tmp_path: Path) -> Catalog:
    made = open_catalog(Settings(home=tmp_path / "fresh"))
    ensure_tables(made)
    return made


def old_lake(catalog: Catalog, release: str) -> None:
    make_old(catalog, RELEASES[release])
    fill(catalog, RELEASES[release])


def form(catalog: Catalog, table: Table) -> dict[str, Any]:
    """What a table is, beside its rows: columns by name, partitions, properties."""
    loaded = catalog.load_table(table.identifier)
    schema = loaded.schema()
    return {
        "columns": {f.name: (f.field_type, f.required) for f in schema.fields},
        "key": schema.identifier_field_names(),
        "partitions": [(schema.find_column_name(f.source_id), f.transform, f.name, f.field_id) for f in loaded.spec().fields],
        "properties": loaded.properties,
        "format": loaded.format_version,
    }


def rows(catalog: Catalog, name: str, columns: tuple[str, ...] = ("*",)) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.load_table(f"sdv.{name}").scan(selected_fields=columns).to_arrow().to_pylist()
    return sorted(found, key=repr)


def places(catalog: Catalog) -> dict[str, str]:
    return {t.name: catalog.load_table(t.identifier).metadata_location for t in TABLES if catalog.table_exists(t.identifier)}


@pytest.mark.parametrize("release", RELEASES)
def test_a_lake_of_an_earlier_release_becomes_what_a_new_one_is(catalog: Catalog, fresh: Catalog, release: str) -> None:
    old_lake(catalog, release)
    columns = {name: tuple(old.columns) for name, old in RELEASES[release].items()}
    before = {name: rows(catalog, name, of) for name, of in columns.items()}

    migrate(catalog)

    for table in TABLES:
        assert form(catalog, table) == form(fresh, table)
    assert {name: rows(catalog, name, of) for name, of in columns.items()} == before
    places_of_payloads = {row["data_id"]: (row["sha1"], row["stored_at"]) for row in rows(catalog, META.name)}
    assert places_of_payloads == {f"d{n}": (f"sha1 of {n}", at(n)) for n in range(1, 6)}
    assert read_payloads(catalog, ["d1", "d4"]) == {"d1": b"payload 1", "d4": b"payload 4"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_second_migration_changes_nothing(catalog: Catalog, release: str) -> None:
    old_lake(catalog, release)
    assert migrate(catalog).steps
    before = places(catalog)
    assert migrate(catalog).steps == []
    assert places(catalog) == before


def test_a_new_lake_needs_no_migration(fresh: Catalog) -> None:
    assert plan(fresh).steps == []
    assert {t.name: t.version for t in TABLES} == plan(fresh).versions


def test_a_plan_says_the_steps_and_changes_nothing(catalog: Catalog) -> None:
    old_lake(catalog, "second")
    before = places(catalog)
    planned = plan(catalog)
    assert places(catalog) == before
    assert [s.step for s in planned.steps if s.table == META.name] == [step.name for step in STEPS[META.name]]
    assert [(s.table, s.step) for s in migrate(catalog).steps] == [(s.table, s.step) for s in planned.steps]


def test_whoever_makes_the_tables_hears_which_are_to_be_migrated(catalog: Catalog) -> None:
    old_lake(catalog, "second")
    assert sorted(ensure_tables(catalog)) == sorted(RELEASES["second"])
    migrate(catalog)
    assert ensure_tables(catalog) == []


def test_every_version_has_its_step() -> None:
    assert {t.name: t.version for t in EVERY_TABLE} == {name: 1 + len(steps) for name, steps in STEPS.items()}
    for steps in STEPS.values():
        assert len({step.name for step in steps}) == len(steps)


def test_a_payload_without_a_name_gets_one_and_a_name_without_a_payload_goes(catalog: Catalog) -> None:
    old_lake(catalog, "second")
    add(catalog, DATA.name, payload_row(7))
    add(catalog, META.name, name_row(8))
    migrate(catalog)
    found = {row["data_id"]: row for row in rows(catalog, META.name)}
    assert found.keys() == {"d1", "d2", "d3", "d4", "d5", "d7"}
    assert found["d7"] == {"data_id": "d7", "first_seen_at": at(7), "last_seen_at": at(7), "times_seen": 1} | {
        "sha1": "sha1 of 7",
        "stored_at": at(7),
    }


def test_of_a_payload_that_is_there_twice_the_first_counts(catalog: Catalog) -> None:
    old_lake(catalog, "second")
    add(catalog, DATA.name, payload_row(9, data_id="d2", ms=1), payload_row(8, data_id="d3", ms=99))
    migrate(catalog)
    found = {row["data_id"]: (row["sha1"], row["stored_at"]) for row in rows(catalog, META.name)}
    assert (found["d2"], found["d3"]) == (("sha1 of 9", at(1)), ("sha1 of 3", at(3)))


def test_an_empty_lake_of_an_earlier_release_is_migrated(catalog: Catalog, fresh: Catalog) -> None:
    make_old(catalog, RELEASES["second"])
    migrate(catalog)
    assert form(catalog, META) == form(fresh, META)


def test_the_ledger_gets_the_day_of_each_segment_and_is_filled_again_after_a_rollback(catalog: Catalog) -> None:
    old_lake(catalog, "third")
    dated = "trigger/dt=2026-03-01/hour=12/x.jsonl"
    row = {"stream": "trigger", "messages": 0, "run_id": "old", "ingested_at": at(10)}
    add(catalog, SEGMENTS.name, row | {"path": dated}, row | {"path": "trigger/some.jsonl"})
    before = catalog.load_table(SEGMENTS.identifier).metadata.current_snapshot_id
    assert before is not None
    for _ in range(2):
        migrate(catalog)
        loaded = catalog.load_table(SEGMENTS.identifier)
        found = {row["path"]: row["began_at"] for row in rows(catalog, SEGMENTS.name)}
        assert found == {dated: at(0), "trigger/some.jsonl": None, "trigger/gone/1-0.parquet": datetime_of(1)}
        days = {task.file.partition[0] for task in loaded.scan().plan_files()}
        assert days == {None, EPOCH.toordinal() - date(1970, 1, 1).toordinal(), at(0).toordinal() - date(1970, 1, 1).toordinal()}
        loaded.manage_snapshots().rollback_to_snapshot(before).commit()


def test_what_a_site_has_set_stays(catalog: Catalog) -> None:
    old_lake(catalog, "second")
    with catalog.load_table(DATA.identifier).transaction() as change:
        change.set_properties({"write.parquet.row-group-size-bytes": "4194304"})
    migrate(catalog)
    has = catalog.load_table(DATA.identifier).properties
    assert has["write.parquet.row-group-size-bytes"] == "4194304"
    assert has[SCHEMA_VERSION] == str(DATA.version)
