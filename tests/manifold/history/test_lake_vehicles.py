"""The history of a vehicle in the lake, at once and page by page."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.seq import datetime_of, first_seq_at
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.history.entry import Bounds
from manifold.history.from_lake import read_entries, read_vehicle_page
from manifold.lake.catalog import open_catalog
from manifold.settings import Settings
from tests.pipelines.makers import NOON
from tests.support.lake_rows import append, new_lake

FILES, A_FILE = 12, 3  # one file per day, with this many entries per vehicle


def seq(day: int, n: int = 0) -> int:
    return first_seq_at(NOON + timedelta(days=day, seconds=n))


def row(of: int, vin: str) -> dict[str, object]:
    return {"vin": vin, "ts": datetime_of(of), "request_id": "task", "seq": of, "data_id": "d", "applied": True}


EVERY = [seq(day, n) for day in range(FILES) for n in range(A_FILE)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Some days of two vehicles; files are unordered and one day is written twice."""
    catalog = new_lake(Settings(home=tmp_path_factory.mktemp("lake")))
    for day in [*range(1, FILES, 2), *range(0, FILES, 2), 7]:
        append(catalog, IDS, [row(seq(day, n), vin) for vin in ("V1", "V2") for n in range(A_FILE)])
    ended = {"vin": "V1", "outcome": "delivered", "ended_at": NOON, "acknowledged_at": NOON}
    append(catalog, OUTCOMES, [ended | {"seq": of, "accepted_at": datetime_of(of)} for of in EVERY[:-1]])
    return catalog


def test_entries_of_a_vehicle_are_listed_once_oldest_first_with_outcomes(catalog: Catalog) -> None:
    entries = read_entries(catalog, "V1")

    assert [entry.seq for entry in entries] == EVERY
    assert [entry.state for entry in entries] == ["delivered"] * (len(EVERY) - 1) + ["pending"]


@pytest.mark.parametrize("limit", [1, 7, 35, 36, 100])
@pytest.mark.parametrize("rows", [1, 10_000])
def test_the_pages_list_every_entry_once_newest_first(catalog: Catalog, limit: int, rows: int) -> None:
    found: list[list[int]] = []
    before: int | None = Bounds().before
    while before is not None:
        page = read_vehicle_page(catalog, "V1", Bounds(limit=limit, rows=rows, before=before))
        assert len(page.entries) <= limit
        assert page.before is None or page.before < before, "each page continues the previous one"
        assert all(entry.vin == "V1" and entry.seq < before for entry in page.entries)
        found.append([entry.seq for entry in page.entries])
        before = page.before

    assert [one for entries in reversed(found) for one in entries] == EVERY


def test_a_page_can_end_at_a_seq(catalog: Catalog) -> None:
    page = read_vehicle_page(catalog, "V1", Bounds(limit=10, since=EVERY[-2]))

    assert ([entry.seq for entry in page.entries], page.before) == (EVERY[-2:], None)


def test_a_page_begins_before_a_seq(catalog: Catalog) -> None:
    page = read_vehicle_page(catalog, "V2", Bounds(limit=2, before=EVERY[-1]))

    assert [(entry.seq, entry.state) for entry in page.entries] == [(EVERY[-3], "pending"), (EVERY[-2], "pending")]
    assert page.before == EVERY[-3]


def test_a_missing_vehicle_or_lake_has_no_entry(catalog: Catalog, tmp_path: Path) -> None:
    for lake, vin in ((catalog, "V9"), (open_catalog(Settings(home=tmp_path / "new")), "V1")):
        page = read_vehicle_page(lake, vin, Bounds())
        assert (page.entries, page.before, read_entries(lake, vin)) == ([], None, [])
