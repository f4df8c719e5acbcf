"""Ingest: archive in, six tables out, for any repetition and chunking."""

import json
import random
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest

from manifold.archive.segment import Interval
from manifold.contracts.envelope import Stream
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, SEGMENTS, TABLES
from manifold.lake.catalog import ensure_tables
from manifold.lake.payloads import read_payloads
from pipelines.ingest.chunks import ingest_and_audit
from pipelines.ingest.publish import publish
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, duplicate, inline, outcome, seq_at, trigger

pytestmark = pytest.mark.slow
TRIGGER, OUT = Stream.TRIGGER, Stream.OUTCOME


def whole_lake(spark_lake: SparkLake) -> dict[str, object]:
    """Everything in main except the run ids, and so except payload locations; sightings are folded as readers do."""
    run_by_run = ("run_id", "ingested_at", "stored_at")
    shown = {table.name: [c.name for c in table.columns if c.name not in run_by_run] for table in TABLES}
    rows = {table.name: spark_lake.rows(table, *shown[table.name]) for table in TABLES if table is not META}
    return rows | {META.name: spark_lake.seen(*shown[META.name])}


def test_every_stream_becomes_rows_of_its_tables(spark_lake: SparkLake) -> None:
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


def test_ingest_notes_which_vins_are_valid_also_in_a_lake_without_the_column(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    spark_lake.append(IDS, [{"vin": "V0", "ts": at(0), "request_id": "r", "seq": seq_at(0), "data_id": "d1", "applied": True}])
    with spark_lake.catalog.load_table(IDS.identifier).update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("vin_is_iso_3779")
    valid = "1M8GDM9AXKP042788"
    spark_lake.write(TRIGGER, [trigger(1, [valid, "V1"]), trigger(2, [valid])])

    _, judged = ingest_and_audit(spark_lake.run("run"))
    publish(spark_lake.catalog, "run")

    found = spark_lake.rows(IDS, "vin", "seq", "vin_is_iso_3779")
    assert found == [(valid, seq_at(1), True), (valid, seq_at(2), True), ("V0", seq_at(0), None), ("V1", seq_at(1), False)]
    assert judged is not None
    (warned,) = (finding for finding in judged.warnings if finding.rule == "vin_is_iso_3779")
    assert (warned.rows, json.loads(warned.samples[0])["vin"]) == (1, "V1")


def test_a_second_run_finds_nothing_new(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1"])])
    spark_lake.ingest("first")
    before = {t.name: spark_lake.catalog.load_table(t.identifier).metadata.current_snapshot_id for t in TABLES}
    assert spark_lake.ingest("second").segments == 0
    assert {t.name: spark_lake.catalog.load_table(t.identifier).metadata.current_snapshot_id for t in TABLES} == before


def test_repeating_a_run_reports_the_same_counts(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1"])])
    assert spark_lake.ingest("run") == spark_lake.ingest("run")
    assert spark_lake.rows(IDS, "vin") == ["V1"]


def test_a_message_repeated_in_another_file_counts_once(spark_lake: SparkLake) -> None:
    first = [trigger(1, ["V1"]), trigger(5, ["V2"])]
    spark_lake.write(TRIGGER, first)
    spark_lake.write(Stream.DATA, [data(2, "d1", b"one")])
    spark_lake.ingest("first")
    spark_lake.write(TRIGGER, [first[1], trigger(6, ["V3"])], node=9)
    spark_lake.write(TRIGGER, [trigger(6, ["V3"]), trigger(7, ["V4"])], node=8)
    spark_lake.write(Stream.DATA, [data(2, "d1", b"one")], node=9)
    assert spark_lake.ingest("second").skipped == 3
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2", "V3", "V4"]
    assert spark_lake.rows(META, "times_seen") == [1]


def test_a_message_counts_once_although_its_first_file_is_gone(spark_lake: SparkLake) -> None:
    message = trigger(1, ["V1"])
    path = spark_lake.write(TRIGGER, [message])
    spark_lake.ingest("first")
    spark_lake.file(path).unlink()
    spark_lake.write(TRIGGER, [message, trigger(2, ["V2"])], node=9)
    spark_lake.ingest("second")
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2"]


def test_refused_messages_are_quarantined_and_stop_nothing(spark_lake: SparkLake) -> None:
    bad = trigger(2, ["V1", 7])
    spark_lake.write(TRIGGER, [trigger(1, ["V1"]), bad, trigger(3, ["V2"], refused_because="said the door")])
    spark_lake.write(Stream.DATA, [data(4, "d 1", b"x")])
    spark_lake.write(OUT, [outcome(5, "V/1", 1)])
    assert spark_lake.ingest().refused == 4
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert spark_lake.rows(QUARANTINE, "seq", "stream") == [
        (seq_at(2), "trigger"),
        (seq_at(3), "trigger"),
        (seq_at(4), "data"),
        (seq_at(5), "outcome"),
    ]
    assert bad.payload in spark_lake.rows(QUARANTINE, "payload")


def torn(content: bytes) -> bytes:
    return content[: len(content) // 2]


def scrambled(content: bytes) -> bytes:
    """Corrupt the pages and leave the footer intact."""
    return content[:4] + b"\xff" * 200 + content[204:]


@pytest.mark.parametrize("harm", [torn, scrambled, lambda _: b"not Parquet at all, but long enough"])
def test_a_file_that_is_not_a_segment_is_quarantined_and_others_are_ingested(
    spark_lake: SparkLake, harm: Callable[[bytes], bytes]
) -> None:
    spark_lake.write(TRIGGER, [trigger(1, ["V1"])])
    broken = spark_lake.write(TRIGGER, [trigger(ms, [f"W{ms}"]) for ms in range(10, 60)])
    content = harm(spark_lake.file(broken).read_bytes())
    spark_lake.file(broken).write_bytes(content)
    spark_lake.ingest("first")
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    ((seq, path, reason, payload),) = spark_lake.rows(QUARANTINE, "seq", "topic", "reason", "payload")
    assert (path, payload) == (broken, content)
    assert seq < 0
    assert reason
    assert spark_lake.ingest("second").segments == 0


def test_other_bytes_under_known_data_are_refused_and_the_first_seq_wins(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.DATA, [data(5, "d1", b"later"), data(6, "d2", b"two")], node=1)
    spark_lake.write(Stream.DATA, [data(4, "d1", b"first")], node=2)
    spark_lake.ingest("first")
    assert spark_lake.rows(DATA, "data_id", "payload") == [("d1", b"first"), ("d2", b"two")]
    assert spark_lake.rows(QUARANTINE, "seq", "payload") == [(seq_at(5), b"later")]
    spark_lake.write(Stream.DATA, [data(8, "d2", b"other"), data(9, "d2", b"two")])
    spark_lake.ingest("second")
    assert spark_lake.rows(QUARANTINE, "seq") == [seq_at(5), seq_at(8)]
    assert spark_lake.rows(META, "data_id", "times_seen", "last_seen_at") == [
        ("d1", 1, at(4)),
        ("d2", 1, at(6)),
        ("d2", 1, at(9)),
    ]
    assert spark_lake.seen("data_id", "times_seen", "last_seen_at") == [("d1", 1, at(4)), ("d2", 2, at(9))]


def test_an_inline_trigger_stores_its_data(spark_lake: SparkLake) -> None:
    spark_lake.write(TRIGGER, [inline(1, ["V1"], b"hello"), inline(2, ["V2"], b"hello")])
    spark_lake.ingest()
    digest = sha1_hex(b"hello")
    assert spark_lake.rows(IDS, "vin", "data_id") == [("V1", digest), ("V2", digest)]
    assert spark_lake.rows(DATA, "data_id", "payload", "seq") == [(digest, b"hello", seq_at(1))]
    assert spark_lake.rows(META, "times_seen") == [2]


def test_an_inline_trigger_with_conflicting_data_is_refused_as_a_whole(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.DATA, [data(1, sha1_hex(b"hello"), b"squatter")])
    message = inline(2, ["V1"], b"hello")
    spark_lake.write(TRIGGER, [message, trigger(3, ["V2"])])
    spark_lake.ingest()
    assert spark_lake.rows(IDS, "vin") == ["V2"]
    assert spark_lake.rows(QUARANTINE, "seq", "payload") == [(seq_at(2), message.payload)]


def test_last_seen_only_grows_in_any_order(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.DATA, [data(9, "d1", b"x")])
    spark_lake.ingest("first")
    spark_lake.write(Stream.DATA, [data(3, "d1", b"x")])
    spark_lake.ingest("second")
    assert spark_lake.seen() == [("d1", at(3), at(9), 2, sha1_hex(b"x"), at(9))]


def test_an_entry_ends_once_however_often_it_is_reported(spark_lake: SparkLake) -> None:
    spark_lake.write(OUT, [outcome(5, "V1", 1), outcome(6, "V1", 1, Outcome.FAILED), outcome(7, "V2", 1)])
    spark_lake.ingest("first")
    spark_lake.write(OUT, [outcome(8, "V1", 1, Outcome.EXPIRED), outcome(9, "V1", 2, Outcome.EXPIRED)])
    spark_lake.ingest("second")
    assert spark_lake.rows(OUTCOMES, "vin", "seq", "outcome") == [
        ("V1", seq_at(1), "delivered"),
        ("V1", seq_at(2), "expired"),
        ("V2", seq_at(1), "delivered"),
    ]
    assert spark_lake.rows(OUTCOMES, "acknowledged_at").count(None) == 1


def test_an_interval_takes_its_own_segments_and_all_new_takes_the_rest(spark_lake: SparkLake) -> None:
    hour = 3_600_000
    for ms in (0, hour, 2 * hour):
        spark_lake.write(TRIGGER, [trigger(ms, [f"V{ms // hour}"])])
    spark_lake.ingest("second hour", Interval(at(hour), at(2 * hour)))
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    spark_lake.ingest("second hour again", Interval(at(hour), at(2 * hour)))
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    spark_lake.ingest("the rest")
    assert spark_lake.rows(IDS, "vin") == ["V0", "V1", "V2"]


def test_chunked_and_single_ingests_give_the_same_lake(spark_lake: SparkLake, another_spark_lake: SparkLake) -> None:
    for step, each in enumerate((spark_lake, another_spark_lake)):
        each.write(TRIGGER, [trigger(1, ["V1", "V2"]), inline(2, ["V1"], b"hello")])
        if step == 0:
            each.ingest("first")
        each.write(TRIGGER, [trigger(3, ["V3"])])
        each.write(Stream.DATA, [data(4, "d1", b"one"), data(5, sha1_hex(b"hello"), b"hello")])
        each.write(OUT, [outcome(6, "V1", 1), outcome(7, "V1", 1)])
        each.ingest("last")
    assert whole_lake(spark_lake) == whole_lake(another_spark_lake)


def test_hours_ingested_out_of_order_give_the_same_lake(spark_lake: SparkLake, another_spark_lake: SparkLake) -> None:
    hour = 3_600_000
    for each in (spark_lake, another_spark_lake):
        for start in (0, hour, 2 * hour):
            each.write(TRIGGER, [trigger(start, ["V1", "V2"]), trigger(start + 1, ["V1", 7])])
            each.write(Stream.DATA, [data(start + 2, "d1", b"one")])
        each.write(OUT, [outcome(2 * hour + 5, "V1", 0), outcome(2 * hour + 6, "V1", 0, Outcome.FAILED)])
    spark_lake.ingest("at once")
    for start in (2 * hour, 0, hour):
        another_spark_lake.ingest(f"hour {start}", Interval(at(start), at(start + hour)))
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
