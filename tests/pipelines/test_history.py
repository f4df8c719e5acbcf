"""History is removed by whole settled days, and only with a configured retention."""

from datetime import timedelta

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from pipelines.ingest.publish import finish_committed_runs
from pipelines.maintenance.check import check
from pipelines.maintenance.garbage_history import drop_history
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON, at, outcome, seq_at, trigger
from tests.pipelines.plain import compact, ingest, read

DAY_MS = 86_400_000
NOW = NOON + timedelta(days=60)
DAYS = (0, 1, 2, 50)  # one entry of day 1 has not ended


@pytest.fixture
def days(lake: Lake) -> Lake:
    lake.renew()
    for day in DAYS:
        ms = day * DAY_MS
        lake.archive(Stream.TRIGGER, [trigger(ms + 1, ["V1", "V2"]), trigger(ms + 2, ["V1"])])
        ends = [outcome(ms + 11, "V1", ms + 1), outcome(ms + 13, "V1", ms + 2)]
        lake.archive(Stream.OUTCOME, [*ends, *([outcome(ms + 14, "V2", ms + 1)] if day != 1 else [])])
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    return lake


def keeping(lake: Lake, history_days: float) -> Settings:
    return lake.settings.model_copy(update={"history_retention_days": history_days})


def left(lake: Lake) -> tuple[list[int], list[int]]:
    catalog = open_catalog(lake.settings)
    ids, ended = ({(row["seq"] - seq_at(0)) >> 22 for row in read(catalog, table)} for table in (IDS, OUTCOMES))
    return sorted({ms // DAY_MS for ms in ids}), sorted({ms // DAY_MS for ms in ended})


def test_without_a_retention_history_is_kept(days: Lake) -> None:
    gone = drop_history(open_catalog(days.settings), days.settings, now=NOW, dry_run=False)
    assert (gone.count, left(days)) == (0, (list(DAYS), list(DAYS)))


@pytest.mark.parametrize(("history_days", "stays"), [(40.0, [1, 50]), (59.0, [1, 2, 50]), (5.0, [1, 50]), (90.0, [0, 1, 2, 50])])
def test_whole_settled_days_are_removed_and_nothing_that_may_be_pending(
    days: Lake, history_days: float, stays: list[int]
) -> None:
    catalog, settings = open_catalog(days.settings), keeping(days, history_days)
    would_go = drop_history(catalog, settings, now=NOW, dry_run=True)
    assert left(days) == (list(DAYS), list(DAYS))

    gone = drop_history(catalog, settings, now=NOW, dry_run=False)

    assert gone == would_go
    assert gone.count == 3 * (len(DAYS) - len(stays))
    assert left(days) == (stays, stays)
    assert check(catalog, settings, now=NOW).agree, "rows removed this way are not missed"
    assert drop_history(catalog, settings, now=NOW, dry_run=False).count == 0


def test_a_concurrent_compaction_revives_nothing_and_a_kill_is_all_or_nothing(days: Lake) -> None:
    settings = keeping(days, 40)
    player = days.player(lambda catalog: drop_history(catalog, settings, now=NOW, dry_run=False))
    player.go(until="commit sdv.ingested_segments")
    player.go(1).go(until="commit sdv.ingested_segments")  # about to commit
    compact(open_catalog(days.settings), IDS)
    player.go(1).kill()  # commits and dies
    finish_committed_runs(open_catalog(days.settings))
    assert left(days) in (([1, 50], [1, 50]), (list(DAYS), list(DAYS))), player.steps
    drop_history(open_catalog(days.settings), settings, now=NOW, dry_run=False)
    assert left(days) == ([1, 50], [1, 50])
