"""The newest rows of `quality_results`: as many audits as requested, without reading older files."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import ArrowScan

from manifold.contracts.tables import QUALITY
from manifold.lake.catalog import open_catalog
from manifold.lake.quality import MAX_RULES_PER_AUDIT, newest_results, version_of_results
from manifold.settings import Settings
from tests.expectations.results import result
from tests.expectations.rows import NOON
from tests.support.lake_rows import append


@pytest.fixture
def files_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row count of each file read from here on."""
    read: list[int] = []
    to_table = ArrowScan.to_table

    def counting(self, tasks):  # type: ignore[no-untyped-def]
        read.extend(task.file.record_count for task in tasks)
        return to_table(self, tasks)

    monkeypatch.setattr(ArrowScan, "to_table", counting)
    return read


def runs_of(catalog: Catalog, judgements: int, now: datetime = NOON + timedelta(days=1)) -> list[str]:
    return [row["run_id"] for row in newest_results(catalog, judgements, now=now)]


def test_the_newest_audits_are_read_and_no_file_beyond_them(catalog: Catalog, files_read: list[int]) -> None:
    for run in (3, 0, 5, 1, 4, 2):
        append(catalog, QUALITY, [result(run, rule) for rule in ("a", "b")])

    assert runs_of(catalog, 2) == ["run4", "run4", "run5", "run5"]
    assert files_read == [2, 2]


def test_one_file_with_many_audits_is_enough(catalog: Catalog, files_read: list[int]) -> None:
    """Compaction has merged days."""
    for day in range(3):
        append(catalog, QUALITY, [result(day * 24 + n % 8, f"rule{n:03}") for n in range(2 * MAX_RULES_PER_AUDIT)])
    append(catalog, QUALITY, [result(60)])

    assert {*runs_of(catalog, 2, NOON + timedelta(days=4))} == {"run55", "run60"}
    assert files_read == [1, 2 * MAX_RULES_PER_AUDIT]


def test_a_table_idle_for_long_still_has_its_newest_audits(catalog: Catalog) -> None:
    for run in range(3):
        append(catalog, QUALITY, [result(run)])

    for days in (30, 400):
        assert runs_of(catalog, 2, NOON + timedelta(days=days)) == ["run1", "run2"]


def test_a_run_audited_twice_counts_twice(catalog: Catalog) -> None:
    append(catalog, QUALITY, [result(0)])
    append(catalog, QUALITY, [result(1)])
    append(catalog, QUALITY, [result(1, at=NOON + timedelta(hours=2))])

    assert runs_of(catalog, 2) == ["run1", "run1"]


def test_an_empty_table_and_a_missing_one_have_no_audits(catalog: Catalog, tmp_path: Path) -> None:
    fresh = open_catalog(Settings(home=tmp_path / "fresh"))

    assert (runs_of(catalog, 2), runs_of(fresh, 2), version_of_results(fresh)) == ([], [], "")


def test_the_version_changes_with_each_row(catalog: Catalog) -> None:
    before = version_of_results(catalog)
    append(catalog, QUALITY, [result(0)])

    assert version_of_results(catalog) not in {before, ""}
