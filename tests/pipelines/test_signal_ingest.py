"""X-ray signal messages become rows: each signal once despite repetition, and bad ones are quarantined."""

from pathlib import Path
from typing import Any

import pytest

from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.signals.codes import Code, Refusal
from manifold.contracts.signals.records import refused_envelope
from manifold.contracts.tables import QUARANTINE, SEGMENTS, XRAY_PROCESSED, XRAY_RAW, XRAY_STATUS
from manifold.lake.catalog import ensure_tables, make_signal_tables
from manifold.lake.sealing import MAGIC
from pipelines.ingest.chunks import ingest_and_audit
from pipelines.ingest.publish import publish
from pipelines.maintenance.check import check
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON, at, seq_at
from tests.pipelines.signal_makers import Door, readings
from tests.support.lake_rows import add

MARK = b"the words of a patient"


@pytest.fixture
def door(tmp_path: Path, spark_lake: SparkLake) -> Door:
    return Door(spark_lake, tmp_path / "ring")


def run(spark_lake: SparkLake, run_id: str = "run") -> Any:
    written, judged = ingest_and_audit(spark_lake.run(run_id, ms=60_000))
    publish(spark_lake.catalog, run_id)
    return written, judged


def test_signals_and_statuses_become_rows(spark_lake: SparkLake, door: Door) -> None:
    hot = readings(("temperature", 20.5, "celsius"), ("temperature", 99, "celsius"))
    spark_lake.write(Stream.XRAY_RAW, [door.raw(1, "d-1", hot, metadata={"battery": 7}), door.raw(2, "d-2", MARK)])
    spark_lake.write(Stream.XRAY_STATUS, [door.status(3, "d-1", "online", health={"uptime": 5})])
    written, judged = run(spark_lake)
    assert judged.failures + judged.warnings == ()
    assert (written.read["xray_raw"], written.read["xray_status"], written.refused) == (2, 1, 0)

    columns = ("seq", "device_id", "captured_at", "received_at", "schema_version", "battery")
    assert spark_lake.rows(XRAY_RAW, *columns) == [
        (seq_at(1), "d-1", at(1), at(1), "v1", 7),
        (seq_at(2), "d-2", at(2), at(2), "v1", None),
    ]
    opened = [door.keys.open(payload, seq=seq) for seq, payload in spark_lake.rows(XRAY_RAW, "seq", "payload")]
    assert opened == [hot, MARK]
    made = spark_lake.rows(XRAY_PROCESSED, "seq", "readings", "anomaly_types", "rules", "problem")
    assert [(seq, [r["value"] for r in found], *rest) for seq, found, *rest in made] == [
        (seq_at(1), [20.5, 99], "temperature_high", 1, None),
        (seq_at(2), [], "", 1, None),
    ]
    assert [found[0]["severity"] for _, found in spark_lake.rows(XRAY_PROCESSED, "seq", "anomalies") if found] == ["medium"]
    assert spark_lake.rows(XRAY_STATUS, "seq", "device_id", "status", "seen_at", "uptime") == [
        (seq_at(3), "d-1", "online", at(3), 5)
    ]


def test_a_signal_is_one_row_for_any_number_of_messages(spark_lake: SparkLake, door: Door) -> None:
    once = [door.raw(1, "d", b"a", captured=1), door.raw(2, "d", b"a", captured=1), door.raw(3, "d", b"b", captured=1)]
    spark_lake.write(Stream.XRAY_RAW, once)
    run(spark_lake, "first")
    assert spark_lake.rows(XRAY_RAW, "seq") == [seq_at(1), seq_at(3)]
    spark_lake.write(Stream.XRAY_RAW, [door.raw(4, "d", b"b", captured=1), door.raw(5, "e", b"b", captured=1)], node=1)
    spark_lake.write(Stream.XRAY_RAW, once, node=2)
    _, judged = run(spark_lake, "second")
    assert judged.failures == ()
    assert spark_lake.rows(XRAY_RAW, "seq") == spark_lake.rows(XRAY_PROCESSED, "seq") == [seq_at(1), seq_at(3), seq_at(5)]
    assert len(spark_lake.rows(SEGMENTS)) == 3


def test_a_redelivered_status_or_refused_message_is_one_row(spark_lake: SparkLake, door: Door) -> None:
    """A service died between its journal and the acknowledgement, once before an ingest and once after."""
    first = [
        door.status(1, "d", "online", seen=1),
        door.status(2, "d", "online", seen=1, correlation_id="another"),
        door.status(3, "d", "offline", seen=1),
        door.status(4, "d", "online", {"battery": 5}, seen=1),
    ]
    spark_lake.write(Stream.XRAY_STATUS, first)
    bad = [
        door.refused(5, b"a", digest="a"),
        door.refused(6, b"a", digest="a"),
        door.refused(7, b"x"),
        door.refused(8, b"x"),
    ]
    spark_lake.write(Stream.XRAY_RAW, bad)
    _, judged = run(spark_lake, "first")
    assert judged.failures == ()
    assert spark_lake.rows(XRAY_STATUS, "seq") == [seq_at(1), seq_at(3), seq_at(4)]
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(5), seq_at(7), seq_at(8)]
    assert check(spark_lake.catalog, spark_lake.settings, now=at(60_000)).agree

    again = [door.status(11, "d", "online", seen=1), door.status(12, "e", "online", seen=1)]
    spark_lake.write(Stream.XRAY_STATUS, again, node=1)
    spark_lake.write(
        Stream.XRAY_STATUS,
        [
            door.refused(13, b"a", digest="a", stream=Stream.XRAY_STATUS),
            door.refused(14, b"b", digest="b", stream=Stream.XRAY_STATUS),
        ],
        node=2,
    )
    spark_lake.write(Stream.XRAY_RAW, [door.refused(15, b"a", digest="a"), door.refused(16, b"c", digest="c")], node=1)
    run(spark_lake, "second")
    assert spark_lake.rows(XRAY_STATUS, "seq") == [seq_at(ms) for ms in (1, 3, 4, 12)]
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(ms) for ms in (5, 7, 8, 14, 16)]
    assert check(spark_lake.catalog, spark_lake.settings, now=at(60_000)).agree


def test_tables_of_a_release_without_digests_keep_working(spark_lake: SparkLake, door: Door) -> None:
    ensure_tables(spark_lake.catalog)
    make_signal_tables(spark_lake.catalog)
    for table, column in ((QUARANTINE, "digest"), (XRAY_STATUS, "content_digest")):
        with spark_lake.catalog.load_table(table.identifier).update_schema(allow_incompatible_changes=True) as schema:
            schema.delete_column(column)
    refused = {"seq": seq_at(1), "received_at": at(1), "stream": "xray_raw", "topic": "t", "reason": "r", "payload": b"a"}
    add(spark_lake.catalog, QUARANTINE, refused)
    status = {"device_id": "d", "seq": seq_at(2), "received_at": at(2), "seen_at": at(1), "status": "online"}
    add(spark_lake.catalog, XRAY_STATUS, status)
    spark_lake.write(Stream.XRAY_RAW, [door.refused(5, b"a", digest="a"), door.refused(6, b"a", digest="a")])
    spark_lake.write(Stream.XRAY_STATUS, [door.status(7, "d", "offline"), door.status(8, "d", "offline", seen=7)])

    _, judged = run(spark_lake)

    assert judged.failures == ()
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(1), seq_at(5)]
    assert spark_lake.rows(XRAY_STATUS, "seq") == [seq_at(2), seq_at(7)]


def test_bad_records_are_quarantined_and_good_ones_ingested(spark_lake: SparkLake, door: Door) -> None:
    refused = Refusal(Code.SIGNATURE_ERROR, "signed by somebody else")
    spark_lake.write(
        Stream.XRAY_RAW,
        [
            refused_envelope(seq_at(1), at(1), Stream.XRAY_RAW, refused, door.keys.seal(MARK, seq=seq_at(1)), devices=["d"]),
            Envelope(seq_at(2), at(2), Stream.XRAY_RAW, "xray.raw.v1", b"no record"),
            door.raw(3, "d", b"a", sealed=b"not sealed"),
            door.raw(4, "d", b"a"),
        ],
    )
    spark_lake.write(Stream.XRAY_STATUS, [Envelope(seq_at(5), at(5), Stream.XRAY_STATUS, "device.status.v1/d", b"{}")])
    written, _ = run(spark_lake)
    assert written.refused == 4
    kept = spark_lake.rows(QUARANTINE, "seq", "stream", "reason", "payload")
    assert [seq for seq, *_ in kept] == [seq_at(ms) for ms in (1, 2, 3, 5)]
    assert kept[0][2] == "SIGNATURE_ERROR: signed by somebody else"
    assert kept[0][3].startswith(MAGIC)
    assert door.keys.open(kept[0][3], seq=seq_at(1)) == MARK
    assert spark_lake.rows(XRAY_RAW, "seq") == [seq_at(4)]


def test_a_lost_key_is_reported_and_blocks_nothing(spark_lake: SparkLake, door: Door) -> None:
    spark_lake.write(Stream.XRAY_RAW, [door.raw(1, "d", readings(("humidity", 40, "%")))])
    for file in (spark_lake.settings.home / "archive" / "keys").rglob("*.json"):
        file.unlink()
    _, judged = run(spark_lake)
    assert [warning.rule for warning in judged.warnings] == ["payload_was_read"]
    (problem,) = spark_lake.rows(XRAY_PROCESSED, "problem")
    assert problem.startswith(f"the key {NOON:%Y-%m-%d}.")


def test_no_file_of_lake_or_archive_holds_a_payload(spark_lake: SparkLake, door: Door) -> None:
    spark_lake.write(Stream.XRAY_RAW, [door.raw(ms, "d", MARK * ms) for ms in range(1, 30)])
    run(spark_lake)
    files = [file for file in spark_lake.settings.home.rglob("*") if file.is_file()]
    assert any("xray_raw_signals" in str(file) for file in files)
    assert [str(file) for file in files if MARK in file.read_bytes()] == []
    assert all(MARK not in payload for payload in spark_lake.rows(XRAY_RAW, "payload"))
