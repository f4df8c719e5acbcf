"""The ledger is pruned with its archive, and no archive file is ever ingested twice because of that."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import DATA, IDS, META, SEGMENTS
from manifold.lake.catalog import open_catalog
from manifold.lake.sightings import folded
from pipelines.ingest.ledger import pruned_before
from pipelines.maintenance.check import disagreements
from pipelines.maintenance.garbage_files import drop_segments
from pipelines.maintenance.garbage_ledger import prune_ledger
from pipelines.maintenance.restore import _require_complete_archive
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON, at, data, trigger
from tests.pipelines.plain import ingest, read

DAY_MS = 86_400_000
DAYS = 8


@pytest.fixture
def paths(lake: Lake) -> list[str]:
    """A lake with one segment for each of some days and one without a day."""
    lake.renew()
    found = [lake.archive(Stream.TRIGGER, [trigger(day * DAY_MS, [f"V{day}"])]) for day in range(DAYS)]
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    return found


def file(lake: Lake, path: str) -> Path:
    return lake.settings.home / "archive" / path


def prune(lake: Lake, catalog: SqlCatalog | None = None, *, dry_run: bool = False) -> int:
    moment = NOON + timedelta(days=lake.settings.archive_retention_days + 5)
    return prune_ledger(catalog or open_catalog(lake.settings), lake.settings, now=moment, dry_run=dry_run).count


def ledger(lake: Lake) -> list[str]:
    return sorted(row["path"] for row in read(open_catalog(lake.settings), SEGMENTS))


def vehicles(lake: Lake) -> list[str]:
    return sorted(row["vin"] for row in read(open_catalog(lake.settings), IDS))


def test_ledger_rows_of_expired_files_are_removed_and_no_others(lake: Lake, paths: list[str]) -> None:
    for path in (paths[0], paths[1], paths[3], paths[6]):
        file(lake, path).unlink()
    assert prune(lake, dry_run=True) == 3
    assert ledger(lake) == paths
    assert prune(lake) == 3
    assert ledger(lake) == [paths[2], *paths[4:]]  # the third still has its file, and the seventh is too young
    assert prune(lake) == 0
    complete_from = pruned_before(open_catalog(lake.settings).load_table(SEGMENTS.identifier))
    assert complete_from == (NOON + timedelta(days=5)).replace(hour=0)


def test_files_go_before_rows_and_the_newest_of_a_recorder_keeps_its_row(lake: Lake, paths: list[str]) -> None:
    other = [lake.archive(Stream.TRIGGER, [trigger(day * DAY_MS, [f"W{day}"], node=7)], node=7) for day in (0, 1)]
    catalog, moment = open_catalog(lake.settings), NOON + timedelta(days=lake.settings.archive_retention_days + 5)
    ingest(catalog, lake.settings, run_id="second", now=at(0))
    gone = drop_segments(catalog, lake.settings, now=moment, dry_run=False)
    assert sorted([*gone.sample]) == sorted([*paths[:5], other[0]])
    assert gone.bytes
    assert set(ledger(lake)) == {*paths, *other}
    assert prune(lake) == 6
    assert ledger(lake) == sorted([*paths[5:], other[1]])
    assert [s.path for s in Archive(lake.settings.archive).segments()] == ledger(lake)


def test_a_pruned_segment_that_returns_adds_nothing_twice(lake: Lake, paths: list[str]) -> None:
    kept = file(lake, paths[1]).read_bytes()
    for path in paths[:4]:
        file(lake, path).unlink()
    prune(lake)
    before = vehicles(lake)
    file(lake, paths[1]).write_bytes(kept)
    ingest(open_catalog(lake.settings), lake.settings, run_id="again", now=at(1))
    assert (vehicles(lake), paths[1] in ledger(lake)) == (before, True)
    assert disagreements(open_catalog(lake.settings), lake.settings, now=at(0))[0] == []


def test_a_pruned_data_segment_that_returns_stores_nothing_twice_but_counts_again(lake: Lake) -> None:
    """No table has the seqs of data messages, so the plan cannot know that they have been ingested (docs/progress.md)."""
    lake.renew()
    path = lake.archive(Stream.DATA, [data(0, "d1", b"one")])
    lake.archive(Stream.DATA, [data(DAY_MS, "d2", b"two")])
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    kept = file(lake, path).read_bytes()
    file(lake, path).unlink()
    assert prune(lake) == 1
    file(lake, path).write_bytes(kept)
    ingest(open_catalog(lake.settings), lake.settings, run_id="again", now=at(1))
    catalog = open_catalog(lake.settings)
    assert sorted(row["data_id"] for row in read(catalog, DATA)) == ["d1", "d2"]
    sightings = folded(catalog.load_table(META.identifier).scan().to_arrow())
    assert dict(zip(sightings["data_id"].to_pylist(), sightings["times_seen"].to_pylist(), strict=True)) == {"d1": 2, "d2": 1}


def test_segments_of_a_recorder_away_for_longer_than_the_retention_are_ingested(lake: Lake, paths: list[str]) -> None:
    for path in paths[:4]:
        file(lake, path).unlink()
    prune(lake)
    lake.archive(Stream.TRIGGER, [trigger(DAY_MS + 1, ["LATE"]), trigger(DAY_MS + 2, ["LATE"], node=0)], node=9)
    ingest(open_catalog(lake.settings), lake.settings, run_id="again", now=at(1))
    assert vehicles(lake).count("LATE") == 2


def test_a_restore_warns_that_pruned_history_would_be_lost(lake: Lake, paths: list[str]) -> None:
    file(lake, paths[0]).unlink()
    prune(lake)
    with pytest.raises(Permanent, match="the lake has what began before 2026-03-06, and the archive does not keep it"):
        _require_complete_archive(open_catalog(lake.settings), lake.settings, is_ledger_readable=True)


@pytest.mark.parametrize("kills", [False, True], ids=["paused", "killed"])
def test_a_concurrent_ingest_loses_and_doubles_no_row(lake: Lake, kills: bool) -> None:
    """A copy of a pruned segment returns together with a new one at each step of the prune."""
    for step in range(20):
        lake.renew()
        made = [lake.archive(Stream.TRIGGER, [trigger(day * DAY_MS, [f"V{day}"])]) for day in range(3)]
        ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
        kept = file(lake, made[1]).read_bytes()
        file(lake, made[1]).unlink()
        pruning = lake.player(lambda catalog: prune(lake, catalog)).go(step)
        if pruning.is_over:
            assert step > 3
            return
        file(lake, made[1]).write_bytes(kept)
        new = lake.archive(Stream.TRIGGER, [trigger(2 * DAY_MS + step + 1, ["NEW"])])
        ingest(open_catalog(lake.settings), lake.settings, run_id="second", now=at(1))
        if kills:
            pruning.kill()
        else:
            pruning.go()
        ingest(open_catalog(lake.settings), lake.settings, run_id="third", now=at(2))
        assert vehicles(lake) == ["NEW", "V0", "V1", "V2"], pruning.steps
        assert ledger(lake) == sorted([*made, new]), pruning.steps
    raise AssertionError("the prune never ends")
