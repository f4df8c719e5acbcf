"""The audit looks `sdv_fanout_data` up only in days that can hold a payload, or in all days if unknown."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, META, QUARANTINE
from pipelines.ingest import write_payloads
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.audit_references import MAX_SPANS, spans_of
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.write import ingest
from tests.pipelines.conftest import Kept, SparkLake, kept
from tests.pipelines.makers import at, data, trigger
from tests.pipelines.plain import read, rewrite, sightings

ONE_DAY = timedelta(days=1)
DAY_MS = 86_400_000


def days(*numbers: int) -> list[date]:
    return [date(2026, 1, 1) + number * ONE_DAY for number in numbers]


def test_spans_are_whole_days_and_adjacent_days_are_merged() -> None:
    first, second = spans_of(days(5, 0, 1, 2, 0))
    assert first == (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, 23, 59, 59, 999_999, tzinfo=UTC))
    assert second == (datetime(2026, 1, 6, tzinfo=UTC), datetime(2026, 1, 6, 23, 59, 59, 999_999, tzinfo=UTC))
    assert spans_of([]) == []


@given(st.sets(st.integers(0, 3000), max_size=4 * MAX_SPANS))
def test_any_number_of_days_fits_into_a_few_spans(numbers: set[int]) -> None:
    spans = spans_of(days(*numbers))
    noons = [datetime(day.year, day.month, day.day, 12, tzinfo=UTC) for day in days(*numbers)]
    assert all(sum(first <= noon <= last for first, last in spans) == 1 for noon in noons)
    assert len(spans) <= MAX_SPANS
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def judged(lake: SparkLake, run_id: str, ms: int) -> None:
    """Written and audited as a whole, without quarantining."""
    ingest(lake.run(run_id, ms))
    audit_run(lake.run(run_id, ms))


def broken(lake: SparkLake, run_id: str, ms: int) -> set[tuple[str, str]]:
    with pytest.raises(AuditFailed) as failed:
        judged(lake, run_id, ms)
    return {(finding.table, finding.rule) for finding in failed.value.result.failures}


def change(lake: SparkLake, data_id: str, **values: Any) -> None:
    """Change the index, as no run would."""
    rows = [row | values if row["data_id"] == data_id else row for row in read(lake.catalog, META)]
    rewrite(lake.catalog, META, rows)


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A lake with three payloads of noon."""
    lake = new_spark_lake(tmp_path_factory.mktemp("old") / "home")
    lake.write(Stream.DATA, [data(1, "a", b"1"), data(2, "m", b"2"), data(3, "z", b"3")])
    lake.ingest_plainly("old", 10)
    return kept(lake)


@pytest.fixture
def old(made: Kept) -> SparkLake:
    return made.renewed()


def test_an_audit_reads_only_days_that_its_run_refers_to(old: SparkLake) -> None:
    files = old.catalog.load_table(DATA.identifier).scan().plan_files()
    for task in files:
        old.settings.home.joinpath(task.file.file_path.rpartition("/home/")[2]).unlink()
    old.write(Stream.DATA, [data(9 * DAY_MS, "n", b"new")])
    old.write(Stream.TRIGGER, [trigger(9 * DAY_MS + 1, ["V1"], "a"), trigger(9 * DAY_MS + 2, ["V1"], "n")])
    judged(old, "new", 9 * DAY_MS + 10)


def test_payloads_repeated_late_and_out_of_order_break_nothing(old: SparkLake) -> None:
    for number, days_of_run in enumerate([(40,), (-30, 3)]):
        for day in days_of_run:
            old.write(Stream.DATA, [data(day * DAY_MS, "m", b"2"), data(day * DAY_MS + 1, f"n{day}", b"new")])
            old.write(Stream.DATA, [data(day * DAY_MS + 2, "n40", b"new")])
            old.write(Stream.TRIGGER, [trigger(day * DAY_MS + 3, ["V1"], "m")])
        ingest_audit_publish(old.run(f"run{number}", 41 * DAY_MS))
    seen = {row["data_id"]: (row["times_seen"], row["stored_at"]) for row in sightings(old.catalog)}
    assert seen == {
        "a": (1, at(1)),
        "m": (4, at(2)),
        "z": (1, at(3)),
        "n40": (4, at(40 * DAY_MS + 1)),
        "n-30": (1, at(-30 * DAY_MS + 1)),
        "n3": (1, at(3 * DAY_MS + 1)),
    }


def nothing_is_known(lake: SparkLake, patched: pytest.MonkeyPatch) -> None:
    """Make ingest find no payload in the lake."""
    right = write_payloads._known_data
    patched.setattr(write_payloads, "_known_data", lambda *given: right(*given).limit(0))


def payloads_are_lost(lake: SparkLake, patched: pytest.MonkeyPatch) -> None:
    right = write_payloads.data_rows
    patched.setattr(write_payloads, "data_rows", lambda *given: right(*given).limit(0))


def names_are_lost(lake: SparkLake, patched: pytest.MonkeyPatch) -> None:
    right = write_payloads.sightings_of
    patched.setattr(write_payloads, "sightings_of", lambda *given: right(*given).where("data_id = 'm'"))


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        pytest.param(nothing_is_known, {(DATA.name, "data_id_is_unique")}, id="stored again on another day"),
        pytest.param(payloads_are_lost, {(META.name, "data_id_is_known")}, id="named and not stored"),
        pytest.param(names_are_lost, {(DATA.name, "data_id_is_known")}, id="stored and not named"),
    ],
)
def test_a_run_that_breaks_payload_and_index_consistency_is_held_back(
    old: SparkLake,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[SparkLake, pytest.MonkeyPatch], None],
    rules: set[tuple[str, str]],
) -> None:
    old.write(Stream.DATA, [data(9 * DAY_MS, "m", b"2"), data(9 * DAY_MS + 1, "n", b"new")])
    with monkeypatch.context() as patched:
        fault(old, patched)
        assert broken(old, "new", 9 * DAY_MS + 10) == rules
    old.ingest_plainly("again", 9 * DAY_MS + 20)  # the fault is repaired, and the same segments are ingested
    assert sorted(row["data_id"] for row in read(old.catalog, DATA)) == ["a", "m", "n", "z"]


def test_an_index_row_with_a_wrong_location_is_found_when_the_payload_returns(old: SparkLake) -> None:
    change(old, "m", stored_at=at(-5 * DAY_MS))
    old.write(Stream.DATA, [data(9 * DAY_MS, "m", b"2")])
    assert broken(old, "new", 9 * DAY_MS + 10) == {(META.name, "data_id_is_known")}


def test_a_payload_without_its_index_row_is_not_stored_again_on_another_day(old: SparkLake) -> None:
    rewrite(old.catalog, META, [row for row in read(old.catalog, META) if row["data_id"] != "m"])
    old.write(Stream.DATA, [data(9 * DAY_MS, "m", b"2"), data(9 * DAY_MS + 1, "n", b"new")])
    ingest_audit_publish(old.run("new", 9 * DAY_MS + 20))  # quarantines the offenders
    assert sorted(row["data_id"] for row in read(old.catalog, DATA)) == ["a", "m", "n", "z"]
    (refused,) = read(old.catalog, QUARANTINE)
    assert "data_id_is_unique" in refused["reason"]
