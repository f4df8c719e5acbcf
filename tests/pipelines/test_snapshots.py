"""Snapshots of a busy table are bounded in number, and none that a run needs is removed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, SEGMENTS, Table
from manifold.lake.catalog import open_catalog
from manifold.lake.commits import MAIN
from pipelines.maintenance.ledger_pack import pack_ledger
from pipelines.maintenance.snapshots import READ_GRACE, expire_by_count, snapshot_cutoff
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, trigger
from tests.pipelines.plain import ingest, read

RUNS, MOST = 8, 3


@pytest.fixture
def streamed(lake: Lake) -> Lake:
    """A lake into which many runs ingested one segment each."""
    lake.renew()
    catalog = open_catalog(lake.settings)
    for n in range(RUNS):
        bring(lake, catalog, n)
    return Lake(lake.settings.model_copy(update={"snapshot_max": MOST}), lake.template)


def bring(lake: Lake, catalog: Catalog, n: int) -> None:
    lake.archive(Stream.TRIGGER, [trigger(n, [f"V{n}"])])
    ingest(catalog, lake.settings, run_id=f"stream_{n}", now=at(n))


def snapshots(catalog: Catalog, table: Table) -> int:
    return len(catalog.load_table(table.identifier).snapshots())


def test_only_the_newest_snapshots_stay_and_no_row_is_lost(streamed: Lake) -> None:
    catalog, later = open_catalog(streamed.settings), datetime.now(UTC) + READ_GRACE + timedelta(minutes=1)
    assert snapshots(catalog, SEGMENTS) > RUNS
    gone = expire_by_count(catalog, streamed.settings, now=later)
    assert gone[SEGMENTS.name]
    assert snapshots(catalog, SEGMENTS) <= MOST + 1  # plus the previous newest
    assert snapshots(catalog, IDS) <= MOST + 1
    assert len(read(catalog, IDS)) == len(read(catalog, SEGMENTS)) == RUNS
    bring(streamed, catalog, RUNS)
    assert len(read(catalog, IDS)) == RUNS + 1
    assert not any(expire_by_count(catalog, streamed.settings, now=later - READ_GRACE).values())


def test_snapshots_that_readers_may_use_stay_in_any_number(streamed: Lake) -> None:
    catalog = open_catalog(streamed.settings)
    assert not any(expire_by_count(catalog, streamed.settings, now=datetime.now(UTC)).values())
    segments = catalog.load_table(SEGMENTS.identifier)
    few = streamed.settings.model_copy(update={"snapshot_max": 1000})
    assert snapshot_cutoff(segments, few, at(0)) == at(0) - timedelta(days=few.snapshot_retention_days)


def test_an_open_run_is_published_after_snapshots_expired(streamed: Lake) -> None:
    catalog = open_catalog(streamed.settings)
    streamed.archive(Stream.TRIGGER, [trigger(1000, ["OPEN"])])
    slow = streamed.ingesting("slow", ms=1000).go(until=f"commit {SEGMENTS.identifier}").go(1)
    slow.go(until=f"commit {SEGMENTS.identifier}")
    expire_by_count(catalog, streamed.settings, now=datetime.now(UTC) + 2 * READ_GRACE)
    slow.go()
    assert "OPEN" in [row["vin"] for row in read(catalog, IDS)]


def test_old_metadata_is_removed_with_each_commit(lake: Lake) -> None:
    lake.renew()
    catalog, kept = open_catalog(lake.settings), 4
    for table in (IDS, SEGMENTS):
        with catalog.load_table(table.identifier).transaction() as change:
            change.set_properties({"write.metadata.previous-versions-max": str(kept)})
    for n in range(RUNS):
        bring(lake, catalog, n)
    for table in (IDS, SEGMENTS):
        loaded = catalog.load_table(table.identifier)
        assert set(loaded.refs()) == {MAIN}
        folder = Path(loaded.metadata_location.removeprefix("file://")).parent
        assert len(list(folder.glob("*.metadata.json"))) <= kept + 1


def test_main_moves_and_its_branch_is_removed_in_one_commit(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    before = catalog.load_table(IDS.identifier).metadata.last_updated_ms
    bring(lake, catalog, 0)
    loaded = catalog.load_table(IDS.identifier)
    commits = [entry for entry in loaded.metadata.metadata_log if entry.timestamp_ms >= before]
    assert len(commits) == 3  # the branch, the rows, main


def test_small_ledger_files_are_merged_and_overtaken_runs_are_repeated(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    for n in range(RUNS):
        bring(lake, catalog, n)
    lake.archive(Stream.TRIGGER, [trigger(1000, ["OPEN"])])
    slow = lake.ingesting("slow", ms=1000).go(until=f"commit {SEGMENTS.identifier}").go(1)
    before = sorted(map(str, read(catalog, SEGMENTS)))
    assert pack_ledger(catalog, now=at(0)) == RUNS
    assert sum(1 for _ in catalog.load_table(SEGMENTS.identifier).scan().plan_files()) == 1
    assert sorted(map(str, read(catalog, SEGMENTS))) == before
    slow.go()
    assert len(read(catalog, SEGMENTS)) == len(read(catalog, IDS)) == RUNS + 1
    assert pack_ledger(catalog, now=at(0)) == 0
