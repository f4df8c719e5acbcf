"""Each kind of step on a real table, with concurrent work on it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType

from manifold.contracts.brakes import EntryTrigger
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import IDS, MIGRATING, OUTCOMES, QUALITY, SCHEMA_VERSION, SEGMENTS, Column
from manifold.lake.catalog import ensure_tables, open_catalog, where
from manifold.lake.reads import read_trigger
from pipelines.ingest.branches import Overtaken
from pipelines.ingest.publish import finish_committed_runs, publish
from pipelines.maintenance.compact_discover import discover
from pipelines.maintenance.compact_plan import CompactionPolicy
from pipelines.migrations.migrate import migrate, plan
from pipelines.migrations.steps import AddColumns, PartitionBy, RenameColumn, SetProperties, WidenColumn
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, seq_at, trigger
from tests.pipelines.plain import compact, ingest
from tests.support import releases
from tests.support.lake_rows import add

BY_DAY = PartitionBy("by-day", (("ingested_at", "day"),))
DAY, NEXT_DAY = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)


@pytest.fixture
def next_release() -> Iterator[releases.NextRelease]:
    with releases.next_release() as define:
        yield define


@pytest.fixture
def catalog(lake: Lake) -> Catalog:
    lake.renew()
    return open_catalog(lake.settings)


def rename_applied(next_release: releases.NextRelease) -> None:
    """A release that cannot work with the old table."""
    columns = tuple(replace(column, name="expressed") if column.name == "applied" else column for column in IDS.columns)
    next_release(IDS, RenameColumn("expressed", "applied", "expressed"), oldest=IDS.version + 1, columns=columns)


def segment(n: int, day: datetime = DAY) -> dict[str, object]:
    return {"path": f"p{n}", "stream": "trigger", "messages": 1, "run_id": "r", "ingested_at": day + timedelta(hours=1)}


def paths(catalog: Catalog, since: datetime | None = None) -> list[str]:
    table = catalog.load_table(SEGMENTS.identifier)
    scan = table.scan(where(GreaterThanOrEqual, "ingested_at", since)) if since else table.scan()
    return sorted(scan.to_arrow()["path"].to_pylist())


def test_a_table_gains_partitions_and_keeps_its_rows(catalog: Catalog, next_release: releases.NextRelease) -> None:
    add(catalog, SEGMENTS, segment(1), segment(2, NEXT_DAY))
    next_release(SEGMENTS, BY_DAY, day_of="ingested_at")

    assert [(s.table, s.step) for s in migrate(catalog).steps] == [(SEGMENTS.name, "by-day")]

    spec = catalog.load_table(SEGMENTS.identifier).spec()
    assert [(f.name, f.field_id, f.transform) for f in spec.fields] == [("ingested_at_day", 1001, DayTransform())]
    add(catalog, SEGMENTS, segment(3), segment(4, NEXT_DAY))
    assert paths(catalog) == ["p1", "p2", "p3", "p4"]
    assert paths(catalog, NEXT_DAY) == ["p2", "p4"]
    files = catalog.load_table(SEGMENTS.identifier).scan(where(GreaterThanOrEqual, "ingested_at", NEXT_DAY)).plan_files()
    assert sorted(task.file.spec_id for task in files) == [0, 1]


def test_compaction_handles_files_with_and_without_a_day(catalog: Catalog, next_release: releases.NextRelease) -> None:
    add(catalog, SEGMENTS, segment(1))
    next_release(SEGMENTS, BY_DAY, day_of="ingested_at")
    migrate(catalog)
    add(catalog, SEGMENTS, segment(2, NEXT_DAY))
    groups, shape = discover(catalog, SEGMENTS, CompactionPolicy(1 << 20, 2, 30, 2), 0)
    assert {group.day for group in groups} == {None, NEXT_DAY.date()}
    assert shape.files == 2


def test_a_table_loses_its_partitions(catalog: Catalog, next_release: releases.NextRelease) -> None:
    next_release(QUALITY, PartitionBy("no-days", ()), day_of=None)
    migrate(catalog)
    assert not catalog.load_table(QUALITY.identifier).spec().fields


def test_a_committed_run_is_finished_on_a_repartitioned_and_rewritten_table(
    lake: Lake, catalog: Catalog, next_release: releases.NextRelease
) -> None:
    """Its files were written under the old partition spec and are appended again under the new one."""
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    ingest(catalog, lake.settings, run_id="first", now=at(10))
    lake.archive(Stream.TRIGGER, [trigger(20, ["V2"])])
    dying = lake.ingesting("second", ms=30).go(until=f"commit {IDS.identifier}")
    dying.kill()
    assert compact(catalog, IDS)
    next_release(IDS, PartitionBy("by-vehicle", (("ts", "day"), ("vin", "bucket[4]"))))

    migrate(catalog)

    table = catalog.load_table(IDS.identifier)
    for vin in ("V1", "V2"):
        assert table.scan(where(EqualTo, "vin", vin)).to_arrow().num_rows == 1
    assert [f.name for f in table.spec().fields] == ["ts_day", "vin_bucket"]
    lake.archive(Stream.TRIGGER, [trigger(40, ["V3"])])
    ingest(catalog, lake.settings, run_id="third", now=at(50))
    found = catalog.load_table(IDS.identifier).scan()
    assert sorted(found.to_arrow()["vin"].to_pylist()) == ["V1", "V2", "V3"]
    assert {task.file.spec_id for task in found.plan_files()} == {0, table.spec().spec_id}


def test_columns_are_added_renamed_and_widened(catalog: Catalog, next_release: releases.NextRelease) -> None:
    ended = {"vin": "V1", "seq": 1, "outcome": "delivered", "accepted_at": at(1), "ended_at": at(2), "attempts": 7}
    add(catalog, OUTCOMES, ended)
    next_release(OUTCOMES, AddColumns("region", (Column("region", pa.string(), "where", required=False),)))
    next_release(OUTCOMES, RenameColumn("tries", "attempts", "tries"))
    next_release(OUTCOMES, WidenColumn("wide", "tries", pa.int64()))
    next_release(OUTCOMES, WidenColumn("may-be-empty", "ended_at", pa.timestamp("us", tz="UTC"), required=False))

    steps = [s.step for s in migrate(catalog).steps]

    assert steps == ["region", "tries", "wide", "may-be-empty"]
    table = catalog.load_table(OUTCOMES.identifier)
    assert (table.schema().find_type("tries"), table.schema().find_field("ended_at").required) == (LongType(), False)
    (row,) = table.scan().to_arrow().to_pylist()
    assert (row["tries"], row["region"], row["ended_at"]) == (7, None, at(2))
    current = table.current_snapshot()
    assert current is not None
    assert current.schema_id == table.schema().schema_id  # readers by snapshot see the new names


def test_properties_of_an_earlier_release_are_changed(catalog: Catalog, next_release: releases.NextRelease) -> None:
    name = "write.metadata.previous-versions-max"
    next_release(QUALITY, SetProperties("more", {name: "99", "a": "b"}, instead_of={name: "50"}))
    next_release(OUTCOMES, SetProperties("more", {name: "99"}, instead_of={name: "40"}))
    migrate(catalog)
    assert catalog.load_table(QUALITY.identifier).properties[name] == "99"
    assert catalog.load_table(QUALITY.identifier).properties["a"] == "b"
    assert catalog.load_table(OUTCOMES.identifier).properties[name] == "50"


def test_a_run_that_began_before_a_step_is_repeated(lake: Lake, catalog: Catalog, next_release: releases.NextRelease) -> None:
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    slow = lake.ingesting("slow").go(until=f"commit {SEGMENTS.identifier}").go(1)
    assert slow.steps[-2:] == [f"commit {SEGMENTS.identifier}"] * 2  # has opened and is about to commit
    next_release(IDS, RenameColumn("vehicle", "applied", "expressed"))
    migrate(catalog)
    with pytest.raises(Overtaken):
        publish(catalog, "slow")
    slow.kill()


def test_a_newer_table_is_refused_with_name_versions_and_remedy(lake: Lake, catalog: Catalog) -> None:
    newer = str(IDS.version + 3)
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({SCHEMA_VERSION: newer})
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    for work in (
        lambda: ensure_tables(catalog),
        lambda: plan(catalog),
        lambda: migrate(catalog),
        lambda: ingest(catalog, lake.settings, run_id="run", now=at(10)),
    ):
        with pytest.raises(Permanent, match=rf"sdv\.{IDS.name} .*version {newer}.*version {IDS.version}: install the newer"):
            work()
    finish_committed_runs(catalog)  # a committed run may be finished: it changes no meaning


def test_a_table_too_old_is_refused_and_the_remedy_works(catalog: Catalog, next_release: releases.NextRelease) -> None:
    rename_applied(next_release)
    with pytest.raises(Permanent, match="manifold lake migrate"):
        ensure_tables(catalog)
    migrate(catalog)
    ensure_tables(catalog)


def test_readers_accept_a_newer_table_that_has_their_columns(catalog: Catalog) -> None:
    row = {"vin": "V1", "ts": at(1), "request_id": "r", "seq": seq_at(1), "data_id": "d1", "applied": True}
    add(catalog, IDS, row)
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({SCHEMA_VERSION: "99"})
    assert read_trigger(catalog, "V1", seq_at(1)) == EntryTrigger("r", "d1")
    with catalog.load_table(IDS.identifier).update_schema() as schema:
        schema.rename_column("data_id", "payload_id")
    with pytest.raises(Permanent, match=r"version 99.*install the newer release"):
        read_trigger(catalog, "V1", seq_at(1))


def test_an_unfinished_step_does_not_count_for_code_that_needs_it(catalog: Catalog, next_release: releases.NextRelease) -> None:
    rename_applied(next_release)
    migrate(catalog)
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({MIGRATING + "expressed": at(0).isoformat()})
    with pytest.raises(Permanent, match="manifold lake migrate"):
        ensure_tables(catalog)
    assert [(s.step, s.resumed) for s in migrate(catalog).steps] == [("expressed", True)]
    ensure_tables(catalog)


def test_a_version_that_is_not_a_number_is_named(catalog: Catalog) -> None:
    with catalog.load_table(IDS.identifier).transaction() as change:
        change.set_properties({SCHEMA_VERSION: "two"})
    with pytest.raises(Permanent, match=f"{SCHEMA_VERSION}='two'"):
        ensure_tables(catalog)
