"""The cost of a page of a request_id depends on its length, and the pages list every trigger once."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.history.entry import BatchHistory, Bounds
from manifold.history.from_lake import read_page
from manifold.history.lake_pages import read_vehicles
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from tests.pipelines.makers import NOON
from tests.support.lake_rows import append, new_lake

DAYS = 5
ONE_DAY = 3  # triggers


def seq(day: int, n: int = 0) -> int:
    return first_seq_at(NOON + timedelta(days=day, seconds=n))


def entries(of: int, vins: Sequence[str], request_id: str = "task") -> list[dict[str, object]]:
    common = {"ts": datetime_of(of), "request_id": request_id, "seq": of, "data_id": f"d{of}", "applied": True}
    return [{"vin": vin, **common} for vin in vins]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Days on which every trigger had the same request_id; one file per day, rows in VIN order."""
    catalog = new_lake(Settings(home=tmp_path_factory.mktemp("lake")))
    for day in range(DAYS):
        rows = [row for n in range(ONE_DAY) for row in entries(seq(day, n), ["V1", "V2", "V3"])]
        append(catalog, IDS, sorted([*rows, *entries(seq(day, 9), ["V1"], "another")], key=lambda row: str(row["vin"])))
    ended = {"vin": "V2", "outcome": "delivered", "ended_at": NOON}
    append(catalog, OUTCOMES, [ended | {"seq": of, "accepted_at": datetime_of(of)} for of in (seq(4, 2), seq(0))])
    return catalog


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row count of each file read from here on."""
    read: list[int] = []
    to_table = ArrowScan.to_table

    def counting(self: ArrowScan, tasks: list[FileScanTask]) -> pa.Table:
        read.extend(task.file.record_count for task in tasks)
        return to_table(self, tasks)

    monkeypatch.setattr(ArrowScan, "to_table", counting)
    return read


def pages(catalog: Catalog, request_id: str = "task", **bounds: int) -> list[list[int]]:
    found, before = [], Bounds().before
    while True:
        page = read_page(catalog, request_id, Bounds(before=before, **bounds))
        found.append([batch.seq for batch in page.batches])
        if page.before is None:
            return found
        assert page.before < before, "each page continues the previous one"
        before = page.before


EVERY = sorted(seq(day, n) for day in range(DAYS) for n in range(ONE_DAY))


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (1, 10_000), (2, 25), (3, 1), (4, 10_000), (15, 1), (15, 25), (100, 10_000)])
def test_the_pages_list_every_trigger_once_newest_first(catalog: Catalog, limit: int, rows: int) -> None:
    found = pages(catalog, limit=limit, rows=rows)

    assert [one for page in reversed(found) for one in page] == EVERY
    assert all(len(page) <= limit for page in found)


def test_the_newest_trigger_of_a_file_is_not_lost_between_two_pages(catalog: Catalog) -> None:
    found = pages(catalog, "another", limit=100, rows=1)

    assert [one for page in reversed(found) for one in page] == [seq(day, 9) for day in range(DAYS)]


def test_a_page_reads_no_file_beyond_it(catalog: Catalog, read_files: list[int]) -> None:
    page = read_page(catalog, "task", Bounds(limit=2, entries=0))

    assert [batch.seq for batch in page.batches] == EVERY[-2:]
    assert read_files == [10, 1], "entries of the newest day, and outcomes of the file that may contain theirs"


def test_a_search_without_hits_stops_at_a_row_limit_and_says_how_far_it_got(catalog: Catalog, read_files: list[int]) -> None:
    page = read_page(catalog, "zzz", Bounds(rows=20))
    assert page.batches == []
    assert page.before is None, "file statistics exclude this request_id"

    page = read_page(catalog, "bnother", Bounds(rows=20))
    assert (page.batches, read_files) == ([], [10, 10])
    assert page.before == seq(2, 9) + 1


def test_entries_are_counted_by_outcome_and_listed_if_there_are_few(catalog: Catalog) -> None:
    page = read_page(catalog, "task", Bounds(limit=3, entries=7))

    assert page.batches[-1] == BatchHistory(seq(4, 2), f"d{seq(4, 2)}", 3, {"delivered": 1, "open": 2})
    assert page.batches[0].states == {"open": 3}
    assert page.complete_seqs == {seq(4, 2), seq(4, 1)}
    assert [(entry.seq, entry.vin, entry.state) for entry in page.entries] == [
        (seq(4, 1), "V1", "pending"),
        (seq(4, 1), "V2", "pending"),
        (seq(4, 1), "V3", "pending"),
        (seq(4, 2), "V1", "pending"),
        (seq(4, 2), "V2", "delivered"),
        (seq(4, 2), "V3", "pending"),
    ]


def test_vehicles_of_a_trigger_are_listed_with_their_outcomes(catalog: Catalog) -> None:
    assert sorted(read_vehicles(catalog, seq(0))) == [("V1", "pending"), ("V2", "delivered"), ("V3", "pending")]
    assert list(read_vehicles(catalog, seq(0), {"V2", "V9"})) == [("V2", "delivered")]


def test_a_lake_without_tables_has_no_trigger(tmp_path: Path) -> None:
    page = read_page(open_catalog(Settings(home=tmp_path / "new")), "task", Bounds())
    assert (page.batches, page.before) == ([], None)
