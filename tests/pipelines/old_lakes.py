"""Lakes as earlier releases made them: their tables written out as data, and rows of every kind in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import BinaryType, BooleanType, IcebergType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from tests.pipelines.makers import at, seq_at

S, L, N, B, X, T = StringType(), LongType(), IntegerType(), BooleanType(), BinaryType(), TimestamptzType()


@dataclass(frozen=True)
class Old:
    """A table as a release made it."""

    columns: Mapping[str, IcebergType]
    key: set[str]
    optional: set[str] = field(default_factory=set)
    day: str | None = None
    properties: dict[str, str] = field(default_factory=dict)

    def but(self, **changed: Any) -> "Old":
        return Old(**{**self.__dict__, **changed})


FIRST_PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd", "write.distribution-mode": "none"}
SECOND_PROPERTIES = FIRST_PROPERTIES | {
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "2000",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
GROUPS = {"write.parquet.row-group-size-bytes": "1048576", "write.parquet.row-group-check-min-record-count": "4"}

DATA = {"data_id": S, "payload": X, "sha1": S, "size_bytes": L, "seq": L, "first_seen_at": T}
META = {"data_id": S, "first_seen_at": T, "last_seen_at": T, "times_seen": L}
IDS = {"vin": S, "ts": T, "request_id": S, "seq": L, "data_id": S, "applied": B}
TIMES = {"accepted_at": T, "dispatched_at": T, "acknowledged_at": T, "ended_at": T}
OUTCOMES = {"vin": S, "seq": L, "outcome": S, **TIMES, "attempts": N, "reason": S}
QUARANTINE = {"seq": L, "received_at": T, "stream": S, "topic": S, "reason": S, "payload": X}
SEGMENTS = {"path": S, "stream": S, "messages": L, "first_seq": L, "last_seq": L, "run_id": S, "ingested_at": T}
QUALITY = {"run_id": S, "suite": S, "rule": S, "severity": S, "outcome": S, "judged": L, "unexpected": L, "sample": S, "at": T}
ACTIONS = {"seq": L, "action": S, "at": T, "note": S, "segment": S}

FIRST = {
    "sdv_fanout_data": Old(DATA, {"data_id"}, day="first_seen_at"),
    "sdv_fanout_meta": Old(META, {"data_id"}),
    "sdv_fanout_ids": Old(IDS, {"vin", "ts", "request_id", "seq"}, day="ts"),
    "sdv_fanout_outcomes": Old(
        OUTCOMES, {"vin", "seq"}, {"dispatched_at", "acknowledged_at", "attempts", "reason"}, day="accepted_at"
    ),
    "quarantine": Old(QUARANTINE, {"seq"}, day="received_at"),
    "ingested_segments": Old(SEGMENTS, {"path"}, {"first_seq", "last_seq"}),
}
FIRST = {name: table.but(properties=FIRST_PROPERTIES) for name, table in FIRST.items()}
# The second has judgements, actions on refused messages, why a file is no segment; writers are patient.
SECOND = FIRST | {
    "ingested_segments": Old(SEGMENTS | {"refused_because": S}, {"path"}, {"first_seq", "last_seq", "refused_because"}),
    "quality_results": Old(QUALITY, {"run_id", "suite", "rule", "at"}, {"sample"}, day="at"),
    "quarantine_actions": Old(ACTIONS, {"seq", "at"}, {"note", "segment"}, day="at"),
}
SECOND = {name: table.but(properties=SECOND_PROPERTIES) for name, table in SECOND.items()}
# The third has the index of payloads, and small groups of rows; it does not say its versions yet.
THIRD = SECOND | {
    "sdv_fanout_data": SECOND["sdv_fanout_data"].but(properties=SECOND_PROPERTIES | GROUPS),
    "sdv_fanout_meta": Old(
        META | {"sha1": S, "stored_at": T},
        {"data_id"},
        {"sha1", "stored_at"},
        properties=SECOND_PROPERTIES | GROUPS | {"manifold.payload-index": "true"},
    ),
}
RELEASES = {"first": FIRST, "second": SECOND, "third": THIRD}


def make_old(catalog: Catalog, release: dict[str, Old]) -> None:
    """The tables of a release, each with an empty snapshot."""
    catalog.create_namespace("sdv")
    for name, old in release.items():
        fields = [NestedField(n, c, t, required=c not in old.optional) for n, (c, t) in enumerate(old.columns.items(), start=1)]
        schema = Schema(*fields, identifier_field_ids=[f.field_id for f in fields if f.name in old.key])
        spec = PartitionSpec()
        if old.day is not None:
            spec = PartitionSpec(PartitionField(list(old.columns).index(old.day) + 1, 1000, DayTransform(), f"{old.day}_day"))
        made = catalog.create_table(f"sdv.{name}", schema=schema, partition_spec=spec, properties=old.properties)
        made.append(made.schema().as_arrow().empty_table())


def add(catalog: Catalog, name: str, *rows: dict[str, object]) -> None:
    """Rows straight into main, as the table is; columns that it lacks are left out."""
    table = catalog.load_table(f"sdv.{name}")
    columns = table.schema().column_names
    here = [{column: row.get(column) for column in columns} for row in rows]
    table.append(pa.Table.from_pylist(here, schema=table.schema().as_arrow()))


def payload_row(n: int, *, data_id: str | None = None, ms: int | None = None) -> dict[str, object]:
    """A row of `sdv_fanout_data`: payload `n`, stored at `ms`."""
    ms = n if ms is None else ms
    payload = b"payload %d" % n
    row = {"data_id": data_id or f"d{n}", "payload": payload, "sha1": f"sha1 of {n}", "size_bytes": len(payload)}
    return row | {"seq": seq_at(ms), "first_seen_at": at(ms)}


def name_row(n: int, *, seen: int = 1) -> dict[str, object]:
    """A row of `sdv_fanout_meta`, for payload `n`; a table that has an index gets it filled."""
    row = {"data_id": f"d{n}", "first_seen_at": at(n), "last_seen_at": at(n + 60_000), "times_seen": seen}
    return row | {"sha1": f"sha1 of {n}", "stored_at": at(n)}


def fill(catalog: Catalog, release: dict[str, Old], *, payloads: int = 5) -> None:
    """A few rows in every table, in two files where payloads are."""
    half = payloads // 2
    for some in (range(1, half + 1), range(half + 1, payloads + 1)):
        add(catalog, "sdv_fanout_data", *map(payload_row, some))
        add(catalog, "sdv_fanout_meta", *(name_row(n, seen=n) for n in some))
    entry = {"vin": "V1", "ts": at(1), "request_id": "r", "seq": seq_at(1), "data_id": "d1", "applied": True}
    add(catalog, "sdv_fanout_ids", entry, entry | {"vin": "V2"})
    ended = {"vin": "V1", "seq": seq_at(1), "outcome": "delivered", "accepted_at": at(1), "ended_at": at(9), "attempts": 2}
    add(catalog, "sdv_fanout_outcomes", ended)
    refused = {"seq": seq_at(3), "received_at": at(3), "stream": "trigger", "topic": "t", "reason": "no", "payload": b"?"}
    add(catalog, "quarantine", refused)
    segment = {"stream": "trigger", "messages": 1, "first_seq": seq_at(1), "last_seq": seq_at(1), "run_id": "old"}
    add(catalog, "ingested_segments", segment | {"path": "trigger/gone/1-0.parquet", "ingested_at": at(10)})
    if "quality_results" in release:
        rule = {
            "run_id": "old",
            "suite": "s",
            "rule": "r",
            "severity": "error",
            "outcome": "passed",
            "judged": 1,
            "unexpected": 0,
        }
        add(catalog, "quality_results", rule | {"at": at(10)})
        add(catalog, "quarantine_actions", {"seq": seq_at(3), "action": "dropped", "at": at(11), "note": "why"})
