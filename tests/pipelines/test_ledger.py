"""The ledger is read by the days of its segments, and neither it nor the archive is ever in memory as a whole."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from manifold.archive import store
from manifold.archive.segment import Interval, began_at
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest import ledger
from pipelines.ingest.ledger import ledger_of, new_segments
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import NOON, at, trigger
from tests.pipelines.plain import ingest

DAY_MS = 86_400_000


@pytest.fixture
def days(lake: Lake) -> Lake:
    """A lake with a segment of each of ten days."""
    lake.renew()
    for day in range(10):
        lake.archive(Stream.TRIGGER, [trigger(day * DAY_MS, [f"V{day}"])])
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    return lake


def files(lake: Lake, *paths: str) -> int:
    """The number of ledger files that a lookup reads."""
    loaded = open_catalog(lake.settings).load_table(SEGMENTS.identifier)
    return sum(1 for one in ledger.day_filters(map(ledger.day_of, paths)) for _ in loaded.scan(one).plan_files())


def test_a_lookup_reads_only_the_days_of_its_segments(days: Lake) -> None:
    paths = [s.path for s in Archive(days.settings.archive).segments()]
    assert [files(days, *paths[:n]) for n in (1, 3, 10)] == [1, 3, 10]
    assert ledger_of(open_catalog(days.settings)).known([*paths[:2], "trigger/unknown.parquet"]) == set(paths[:2])


def test_segments_without_a_day_and_rows_of_older_ledgers_are_found(days: Lake) -> None:
    catalog = open_catalog(days.settings)
    row = {"stream": "trigger", "messages": 0, "run_id": "old", "ingested_at": at(0)}
    dated = "trigger/dt=2026-03-02/hour=05/some.jsonl"
    rows = pa.Table.from_pylist([row | {"path": dated}, row | {"path": "trigger/some.jsonl"}], schema=SEGMENTS.arrow_schema)
    catalog.load_table(SEGMENTS.identifier).append(rows)
    assert ledger_of(catalog).known([dated, "trigger/some.jsonl", "trigger/other.jsonl"]) == {dated, "trigger/some.jsonl"}


def test_new_segments_are_found_a_few_days_at_a_time_oldest_first(days: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SEGMENT_BATCH_SIZE", 2)
    new = [days.archive(Stream.TRIGGER, [trigger(day * DAY_MS + 5, ["V"])]) for day in (7, 2, 12)]
    (days.settings.home / "archive/trigger/others.jsonl").write_text("")
    catalog, archive = open_catalog(days.settings), Archive(days.settings.archive)
    assert max(map(len, archive.walk())) == 2
    found = [segment.path for segment in new_segments(catalog, archive)]
    assert found == ["trigger/others.jsonl", new[1], new[0], new[2]]
    week = Interval(NOON - timedelta(days=1), NOON + timedelta(days=6))
    assert [segment.path for segment in new_segments(catalog, archive, week)] == [new[1]]
    long = Interval(NOON - timedelta(days=100), NOON + timedelta(days=10))
    assert [segment.path for segment in new_segments(catalog, archive, long)] == [new[1], new[0]]
    assert [s.path for s in new_segments(catalog, archive, archive.segments())] == [
        new[1],
        new[0],
        new[2],
        "trigger/others.jsonl",
    ]


def test_newest_first_is_the_reverse_order(days: Lake) -> None:
    archive = Archive(days.settings.archive)
    older, newer = ([s.path for group in archive.walk(newest_first=first) for s in group] for first in (False, True))
    assert newer == older[::-1]
    assert archive.find([older[3], "trigger/none.parquet"]) == [s for s in archive.segments() if s.path == older[3]]


def test_a_path_with_an_instant_outside_the_calendar_has_no_day() -> None:
    assert began_at("trigger/0001-01-01T00:00:00+05:00.jsonl") is None
    assert began_at("trigger/2026-03-01T05:00:00+05:00.jsonl") == at(-12 * 3600_000)
    assert Path("trigger/dt=2026-03-01").name == "dt=2026-03-01"
