"""Ingest: archive in, tables out, for any repetition and order; tests/pipelines/golden has what becomes of each message."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from manifold.archive.segment import Interval
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS, TABLES, XRAY_STATUS
from manifold.lake.catalog import ensure_tables, make_signal_tables
from manifold.lake.payloads import read_payloads
from pipelines.ingest.backlog import ingest_and_audit
from pipelines.ingest.publish import publish
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, duplicate, outcome, seq_at, trigger
from tests.pipelines.signal_makers import Door
from tests.support.lake_rows import add

pytestmark = pytest.mark.slow
TRIGGER, OUT = Stream.TRIGGER, Stream.OUTCOME


def whole_lake(spark_lake: SparkLake) -> dict[str, object]:
    """Everything in main except the run ids, and so except payload locations; sightings are folded as readers do."""
    run_by_run = ("run_id", "ingested_at", "stored_at")
    shown = {table.name: [c.name for c in table.columns if c.name not in run_by_run] for table in TABLES}
    rows = {table.name: spark_lake.rows(table, *shown[table.name]) for table in TABLES if table is not META}
    return rows | {META.name: spark_lake.seen(*shown[META.name])}


def test_every_stream_becomes_rows_of_its_tables_once(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1", "V2"]), duplicate(2, 1, ["V2", "V1"]), trigger(3, ["V1"], applied=True)])
    spark_lake.write(Stream.DATA, [data(4, "d1", b"one"), data(5, "d1", b"one")])
    spark_lake.write(OUT, [outcome(6, "V1", 1)])
    done = spark_lake.ingest()
    assert spark_lake.rows(IDS, "vin", "seq", "ts", "applied") == [
        ("V1", seq_at(1), at(1), False),
        ("V1", seq_at(3), at(3), True),
        ("V2", seq_at(1), at(1), False),
    ]
    assert spark_lake.rows(DATA, "data_id", "payload", "sha1", "size_bytes", "seq") == [
        ("d1", b"one", sha1_hex(b"one"), 3, seq_at(4))
    ]
    assert spark_lake.rows(META) == [("d1", at(4), at(5), 2, sha1_hex(b"one"), at(4))]
    assert spark_lake.rows(OUTCOMES, "vin", "seq", "outcome", "accepted_at", "acknowledged_at", "attempts") == [
        ("V1", seq_at(1), "delivered", at(1), at(6), 1)
    ]
    assert spark_lake.rows(QUARANTINE) == []
    assert done.read == {"trigger": 3, "data": 2, "outcome": 1, "ecq": 0}
    assert done.written == {DATA.name: 1, META.name: 1, IDS.name: 3, OUTCOMES.name: 1, SEGMENTS.name: 3}

    before = {t.name: spark_lake.catalog.load_table(t.identifier).metadata.current_snapshot_id for t in TABLES}
    assert spark_lake.ingest("another").segments == 0
    assert spark_lake.ingest() == done, "a run that is repeated reports the same counts"
    assert {t.name: spark_lake.catalog.load_table(t.identifier).metadata.current_snapshot_id for t in TABLES} == before


def test_tables_of_earlier_releases_without_newer_columns_keep_working(spark_lake: SparkLake, tmp_path: Path) -> None:
    door, catalog = Door(spark_lake, tmp_path / "ring"), spark_lake.catalog
    ensure_tables(catalog)
    make_signal_tables(catalog)
    spark_lake.append(IDS, [{"vin": "V0", "ts": at(0), "request_id": "r", "seq": seq_at(0), "data_id": "d1", "applied": True}])
    for table, column in ((IDS, "vin_is_iso_3779"), (QUARANTINE, "digest"), (XRAY_STATUS, "content_digest")):
        with catalog.load_table(table.identifier).update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column(column)
    refused = {"seq": seq_at(1), "received_at": at(1), "stream": "xray_raw", "topic": "t", "reason": "r", "payload": b"a"}
    add(catalog, QUARANTINE, refused)
    status = {"device_id": "d", "seq": seq_at(2), "received_at": at(2), "seen_at": at(1), "status": "online"}
    add(catalog, XRAY_STATUS, status)
    valid = "1M8GDM9AXKP042788"
    spark_lake.write(TRIGGER, [trigger(3, [valid, "V1"]), trigger(4, [valid])])
    spark_lake.write(Stream.XRAY_RAW, [door.refused(5, b"a", digest="a"), door.refused(6, b"a", digest="a")])
    spark_lake.write(Stream.XRAY_STATUS, [door.status(7, "d", "offline"), door.status(8, "d", "offline", seen=7)])

    _, judged = ingest_and_audit(spark_lake.run("run", 60_000))
    publish(catalog, "run")

    found = spark_lake.rows(IDS, "vin", "seq", "vin_is_iso_3779")
    assert found == [(valid, seq_at(3), True), (valid, seq_at(4), True), ("V0", seq_at(0), None), ("V1", seq_at(3), False)]
    assert judged is not None
    assert judged.failures == ()
    (warned,) = (finding for finding in judged.warnings if finding.rule == "vin_is_iso_3779")
    assert (warned.rows, json.loads(warned.samples[0])["vin"]) == (1, "V1")
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(1), seq_at(5)]
    assert spark_lake.rows(XRAY_STATUS, "seq") == [seq_at(2), seq_at(7)]


def test_a_message_counts_once_although_its_first_file_is_gone(spark_lake: SparkLake) -> None:
    message = trigger(1, ["V1"])
    path = spark_lake.write(TRIGGER, [message])
    spark_lake.ingest("first")
    spark_lake.file(path).unlink()
    spark_lake.write(TRIGGER, [message, trigger(2, ["V2"])], node=9)
    spark_lake.ingest("second")
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2"]


HARMS: tuple[Callable[[bytes], bytes], ...] = (
    lambda content: content[: len(content) // 2],
    lambda content: content[:4] + b"\xff" * 200 + content[204:],  # corrupt pages, and an intact footer
    lambda _: b"not Parquet at all, but long enough",
)


def test_files_that_are_no_segments_are_quarantined_once_and_others_are_ingested(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1"])])
    content: dict[str, bytes] = {}
    for node, harm in enumerate(HARMS):
        path = spark_lake.write(TRIGGER, [trigger(ms, [f"W{ms}"]) for ms in range(10, 60)], node=node)
        content[path] = harm(spark_lake.file(path).read_bytes())
        spark_lake.file(path).write_bytes(content[path])
    spark_lake.ingest("first")
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    refused = spark_lake.rows(QUARANTINE, "seq", "topic", "reason", "payload")
    assert {path: payload for _, path, _, payload in refused} == content
    assert all(seq < 0 and reason for seq, _, reason, _ in refused)
    assert spark_lake.ingest("second").segments == 0


def test_hours_ingested_out_of_order_give_the_same_lake(spark_lake: SparkLake, another_spark_lake: SparkLake) -> None:
    hour = 3_600_000
    for each in (spark_lake, another_spark_lake):
        for start in (0, hour, 2 * hour):
            each.write(TRIGGER, [trigger(start, ["V1", "V2"]), trigger(start + 1, ["V1", 7])])
            each.write(Stream.DATA, [data(start + 2, "d1", b"one")])
        each.write(OUT, [outcome(2 * hour + 5, "V1", 0), outcome(2 * hour + 6, "V1", 0, Outcome.FAILED)])
    spark_lake.ingest("at once")
    last = Interval(at(2 * hour), at(3 * hour))
    another_spark_lake.ingest("the last hour", last)
    assert set(another_spark_lake.rows(IDS, "seq")) == {seq_at(2 * hour)}
    assert another_spark_lake.ingest("the last hour again", last).segments == 0
    another_spark_lake.ingest("the rest")
    one, other = whole_lake(spark_lake), whole_lake(another_spark_lake)
    # The payload is written once, by the first message ingested; meta has the time of first sight.
    assert one.pop(DATA.name) != other.pop(DATA.name)
    assert one == other
    assert spark_lake.rows(DATA, "data_id", "payload") == another_spark_lake.rows(DATA, "data_id", "payload")


def test_payloads_are_in_small_row_groups_and_found_by_the_index_times(spark_lake: SparkLake) -> None:
    payloads = {f"d{n:02}": random.Random(n).randbytes(256 << 10) for n in range(24)}
    spark_lake.write(Stream.DATA, [data(n, name, payload) for n, (name, payload) in enumerate(payloads.items())])
    spark_lake.ingest("first")
    spark_lake.write(Stream.DATA, [data(100, "d03", payloads["d03"]), data(101, "late", b"late")])
    spark_lake.ingest("second")

    (file, *_) = sorted(spark_lake.catalog.load_table(DATA.identifier).scan().plan_files(), key=lambda t: -t.file.record_count)
    assert pq.ParquetFile(file.file.file_path.removeprefix("file://")).num_row_groups >= 4
    assert spark_lake.seen("data_id", "stored_at", "times_seen")[3] == ("d03", at(3), 2)
    assert read_payloads(spark_lake.catalog, [*payloads, "late"]) == payloads | {"late": b"late"}
