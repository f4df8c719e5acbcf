"""Payloads from the lake: found without a table scan."""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from manifold.contracts.tables import DATA, META
from manifold.lake.catalog import open_catalog
from manifold.lake.payloads import read_payload, read_payloads
from manifold.settings import Settings
from tests.support.lake_rows import append, append_payloads

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KIB = 1024


def bytes_read(question: Callable[[], object]) -> int:
    """Bytes that this process reads from files during the block, cached by the kernel or not."""

    def so_far() -> int:
        counters = Path("/proc/self/io").read_text()
        return int(counters.split("rchar: ")[1].split()[0])

    before = so_far()
    question()
    return so_far() - before


def test_payloads_are_found_by_their_data_ids(catalog: Catalog) -> None:
    append_payloads(catalog, {"d1": b"one", "d2": b"two"}, at=NOON)
    append_payloads(catalog, {"d3": b"three"}, at=NOON + timedelta(days=40))
    assert read_payloads(catalog, ["d1", "d3", "d4"]) == {"d1": b"one", "d3": b"three"}
    assert read_payload(catalog, "d2") == b"two"
    assert read_payload(catalog, "d4") is None


def test_more_ids_than_one_filter_can_hold_are_found(catalog: Catalog) -> None:
    payloads = {f"d{n}": b"%d" % n for n in range(450)}
    append_payloads(catalog, payloads, at=NOON)
    assert read_payloads(catalog, payloads.keys()) == payloads


def test_a_lake_without_tables_has_no_payload(tmp_path: Path) -> None:
    assert read_payload(open_catalog(Settings(home=tmp_path)), "d1") is None


def test_a_payload_seen_by_many_runs_is_found_where_the_first_stored_it(catalog: Catalog) -> None:
    append_payloads(catalog, {"d1": b"one"}, at=NOON)
    sighting = catalog.load_table(META.identifier).scan().to_arrow().to_pylist()[0]
    for hour in range(3):
        append(catalog, META, [sighting | {"first_seen_at": NOON - timedelta(hours=hour)}])
    assert read_payloads(catalog, ["d1", "d2"]) == {"d1": b"one"}


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
def test_a_point_read_does_not_grow_with_the_table(catalog: Catalog) -> None:
    def add_day(day: int) -> None:
        payloads = {f"d{day}-{n}": os.urandom(64 * KIB) for n in range(20)}
        append_payloads(catalog, payloads, at=NOON + timedelta(days=day))

    add_day(0)
    small = bytes_read(lambda: read_payload(catalog, "d0-7"))
    for day in range(1, 30):
        add_day(day)
    stored = sum(task.file.file_size_in_bytes for task in catalog.load_table(DATA.identifier).scan().plan_files())
    assert stored > 30 * 20 * 64 * KIB

    found = []
    large = bytes_read(lambda: found.append(read_payload(catalog, "d0-7")))

    assert len(found[0] or b"") == 64 * KIB
    # A manifest and a small index file per day are added; compaction merges them.
    assert large < small + stored / 20
