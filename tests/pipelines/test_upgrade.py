"""A warehouse that the first release made is opened by this one: new columns and tables come, and no file is written again."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, BooleanType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from contracts.envelope import Stream, to_arrow
from contracts.tables import DATA, IDS, META, SEGMENTS, TABLES
from tests.pipelines.conftest import Place
from tests.pipelines.makers import at, data, seq_at, trigger

S, L, N, B, X, T = StringType(), LongType(), IntegerType(), BooleanType(), BinaryType(), TimestamptzType()
FIRST_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
# The tables as the first release made them, written out: columns, how many of them are the key, optional ones, day.
FIRST: dict[str, tuple[dict[str, IcebergType], set[str], set[str], str | None]] = {
    "sdv_fanout_data": (
        {"data_id": S, "payload": X, "sha1": S, "size_bytes": L, "seq": L, "first_seen_at": T},
        {"data_id"},
        set(),
        "first_seen_at",
    ),
    "sdv_fanout_meta": ({"data_id": S, "first_seen_at": T, "last_seen_at": T, "times_seen": L}, {"data_id"}, set(), None),
    "sdv_fanout_ids": (
        {"vin": S, "ts": T, "request_id": S, "seq": L, "data_id": S, "applied": B},
        {"vin", "ts", "request_id", "seq"},
        set(),
        "ts",
    ),
    "sdv_fanout_outcomes": (
        {
            "vin": S,
            "seq": L,
            "outcome": S,
            "accepted_at": T,
            "dispatched_at": T,
            "acknowledged_at": T,
            "ended_at": T,
            "attempts": N,
            "reason": S,
        },
        {"vin", "seq"},
        {"dispatched_at", "acknowledged_at", "attempts", "reason"},
        "accepted_at",
    ),
    "quarantine": (
        {"seq": L, "received_at": T, "stream": S, "topic": S, "reason": S, "payload": X},
        {"seq"},
        set(),
        "received_at",
    ),
    "ingested_segments": (
        {"path": S, "stream": S, "messages": L, "first_seq": L, "last_seq": L, "run_id": S, "ingested_at": T},
        {"path"},
        {"first_seq", "last_seq"},
        None,
    ),
}
PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd", "write.distribution-mode": "none"}


def make_first_release(catalog: Catalog) -> None:
    catalog.create_namespace("sdv")
    for name, (columns, key, optional, day) in FIRST.items():
        fields = [NestedField(n, c, t, required=c not in optional) for n, (c, t) in enumerate(columns.items(), start=1)]
        schema = Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in key])
        spec = PartitionSpec()
        if day is not None:
            spec = PartitionSpec(PartitionField(list(columns).index(day) + 1, 1000, DayTransform(), f"{day}_day"))
        made = catalog.create_table(f"sdv.{name}", schema=schema, partition_spec=spec, properties=PROPERTIES)
        made.append(made.schema().as_arrow().empty_table())


def add(catalog: Catalog, name: str, **row: object) -> None:
    table = catalog.load_table(f"sdv.{name}")
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))


def files(catalog: Catalog) -> dict[str, set[str]]:
    """The data files of the first release's tables."""
    return {name: {task.file.file_path for task in catalog.load_table(f"sdv.{name}").scan().plan_files()} for name in FIRST}


def test_a_warehouse_of_the_first_release_goes_on_without_a_rewrite(place: Place) -> None:
    make_first_release(place.catalog)
    old_path = place.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    seen = {"path": old_path, "stream": "trigger", "messages": 1, "first_seq": seq_at(1), "last_seq": seq_at(1)}
    add(place.catalog, "ingested_segments", **seen, run_id="first", ingested_at=FIRST_AT)
    add(place.catalog, "sdv_fanout_ids", vin="V1", ts=at(1), request_id="r", seq=seq_at(1), data_id="d1", applied=True)
    add(place.catalog, "sdv_fanout_data", data_id="d1", payload=b"x", sha1="s", size_bytes=1, seq=seq_at(1), first_seen_at=at(1))
    add(place.catalog, "sdv_fanout_meta", data_id="d1", first_seen_at=at(1), last_seen_at=at(1), times_seen=1)
    before = files(place.catalog)

    # A segment of a release in which the envelope has an optional field more, and one in which it has less.
    table = to_arrow([trigger(5, ["V2"])])
    place.write(Stream.TRIGGER, [trigger(5, ["V2"])])
    newest = max(place.file("trigger").rglob("*.parquet"), key=lambda file: int(file.name.split("-")[0]))
    pq.write_table(table.append_column("region", pa.array(["north"])), newest)
    older = place.file(place.write(Stream.DATA, [data(6, "d2", b"two")]))
    pq.write_table(pq.read_table(older).drop_columns(["headers", "applied", "refused_because"]), older)
    place.ingest("second")

    assert place.rows(IDS, "vin") == ["V1", "V2"]
    assert place.rows(DATA, "data_id") == ["d1", "d2"]
    assert place.rows(SEGMENTS, "refused_because") == [None] * 3
    kept = files(place.catalog)
    assert all(before[name] <= kept[name] for name in FIRST if name != META.name)  # meta is merged, so its file is another
    for known in TABLES:
        names = {field.name for field in place.catalog.load_table(known.identifier).schema().fields}
        assert names == {column.name for column in known.columns}
