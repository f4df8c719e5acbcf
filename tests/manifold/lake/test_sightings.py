"""The rows of `sdv_fanout_meta`, folded: however many runs saw a payload, in whatever order."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from manifold.contracts.tables import META
from manifold.lake.sightings import folded

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Row = dict[str, Any]

instants = st.integers(0, 5).map(lambda hour: NOON + timedelta(hours=hour))
rows = st.fixed_dictionaries(
    {
        "data_id": st.sampled_from("abc"),
        "first_seen_at": instants,
        "last_seen_at": instants,
        "times_seen": st.integers(1, 3),
        "sha1": st.sampled_from(("00", "ff")),
        "stored_at": instants,
    }
)


def table(found: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(found, schema=META.arrow_schema)


def as_set(found: pa.Table) -> set[tuple[Any, ...]]:
    told = {tuple(row.items()) for row in found.to_pylist()}
    assert len(told) == found.num_rows
    return told


@given(st.lists(rows, max_size=12))
def test_a_payload_was_seen_first_last_and_so_often_by_all_its_rows(found: list[Row]) -> None:
    expected = set()
    for data_id in {row["data_id"] for row in found}:
        mine = [row for row in found if row["data_id"] == data_id]
        stored_at, sha1 = min((row["stored_at"], row["sha1"]) for row in mine)
        first, last = min(row["first_seen_at"] for row in mine), max(row["last_seen_at"] for row in mine)
        seen = {"data_id": data_id, "first_seen_at": first, "last_seen_at": last}
        row = seen | {"times_seen": sum(row["times_seen"] for row in mine), "sha1": sha1, "stored_at": stored_at}
        expected.add(tuple(row.items()))
    assert as_set(folded(table(found))) == expected


@given(st.data(), st.lists(rows, max_size=12))
def test_rows_in_any_order_and_partly_folded_before_come_to_the_same(draw: st.DataObject, found: list[Row]) -> None:
    shuffled = draw.draw(st.permutations(found))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(found)), max_size=3)))
    parts = [table(shuffled[start:end]) for start, end in zip([0, *cuts], [*cuts, len(found)], strict=True)]
    some = [folded(part) if draw.draw(st.booleans()) else part for part in parts]
    assert as_set(folded(pa.concat_tables(some))) == as_set(folded(table(found)))


def test_some_columns_are_folded_as_all_are() -> None:
    row = {"data_id": "d", "first_seen_at": NOON, "last_seen_at": NOON, "times_seen": 2, "sha1": "00", "stored_at": NOON}
    seen = folded(table([row, row]).select(["stored_at", "data_id", "times_seen"]))
    assert seen.to_pylist() == [{"stored_at": NOON, "data_id": "d", "times_seen": 4}]
    assert folded(table([row, row]).select(["data_id"])).to_pylist() == [{"data_id": "d"}]


def test_a_column_that_nobody_can_fold_is_left_out() -> None:
    row = {"data_id": "d", "region": "north", "times_seen": 2}
    assert folded(pa.Table.from_pylist([row, row])).to_pylist() == [{"data_id": "d", "times_seen": 4}]
