"""`manifold lake check`: differences are found and repaired; agreement is left alone."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from redis import Redis

from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.messages import sha1_hex
from manifold.contracts.tables import (
    DATA,
    ECQ_INDEX,
    ECQ_PAYLOAD,
    ECQ_SEQNO,
    ECQ_STATE,
    EVERY_RUN_TABLE,
    IDS,
    META,
    OUTCOMES,
    QUARANTINE,
    SEGMENTS,
    Table,
)
from manifold.lake.catalog import open_catalog
from manifold.lake.payloads import read_payloads
from pipelines.maintenance.check import check, disagreements
from pipelines.maintenance.repair import forget, repair
from pipelines.maintenance.restore import empty_tables, restore
from pipelines.maintenance.rollback import rollback
from tests.pipelines.conftest import SparkLake
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, data, duplicate, ecq_ack, ecq_rewind, ecq_write, inline, outcome, seq_at, trigger
from tests.pipelines.plain import ingest, read, rewrite
from tests.support.servers import Server

NOW = at(60_000)
# Two keys, one of them written twice; an acknowledgement, and a later rewind.
OF_QUEUES = [*(ecq_write(61 + n, "c1", key, b"x") for n, key in enumerate("aba")), ecq_ack(71, "c1", 62), ecq_rewind(72, "c1")]
MADE = (IDS, DATA, OUTCOMES, QUARANTINE, ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE)  # determined by the archive alone


@pytest.fixture
def whole(lake: Lake) -> Lake:
    """A lake with its whole archive: two segments of triggers, one of data, two of outcomes, one of compacted queues."""
    lake.renew()
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1", "V2"]), trigger(2, ["V1", 7]), duplicate(3, 1, ["V1", "V2"])])
    lake.archive(Stream.TRIGGER, [trigger(11, ["V3"])])
    lake.archive(Stream.DATA, [data(21, "d1", b"one"), data(22, "d1", b"one"), data(23, "d2", b"two")])
    lake.archive(Stream.OUTCOME, [outcome(31, "V1", 1), outcome(32, "V1", 1)])
    lake.archive(Stream.OUTCOME, [outcome(41, "V2", 1)])
    lake.archive(Stream.ECQ, OF_QUEUES)
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=NOW)
    return lake


def troubles(lake: Lake) -> set[tuple[str, str, str, int, int]]:
    found, _, _ = disagreements(open_catalog(lake.settings), lake.settings, now=NOW)
    return {(f.path.split("/")[0], f.trouble, f.table, f.expected, f.found) for f in found}


def lose(catalog: Catalog, table: Table, **row: Any) -> None:
    """Remove these rows from main, as no run would."""
    rewrite(catalog, table, [r for r in read(catalog, table) if any(r[name] != value for name, value in row.items())])


def double(catalog: Catalog, table: Table, **row: Any) -> None:
    rows = [r for r in read(catalog, table) if all(r[name] == value for name, value in row.items())]
    catalog.load_table(table.identifier).append(pa.Table.from_pylist(rows, schema=table.arrow_schema))


def test_a_lake_that_matches_its_archive_is_left_alone(whole: Lake) -> None:
    result = check(open_catalog(whole.settings), whole.settings, now=NOW)
    assert result.agree
    assert (result.segments, result.messages) == (6, 15)


def test_missing_and_duplicate_rows_in_any_table_are_found(whole: Lake) -> None:
    catalog = open_catalog(whole.settings)
    lose(catalog, IDS, vin="V2")
    lose(catalog, META, data_id="d2")
    lose(catalog, OUTCOMES, vin="V2")
    lose(catalog, QUARANTINE, stream="trigger")
    double(catalog, IDS, vin="V3")
    double(catalog, DATA, data_id="d1")
    double(catalog, OUTCOMES, vin="V1")
    double(catalog, SEGMENTS, stream="data")
    assert troubles(whole) == {
        ("trigger", "missing", IDS.name, 2, 1),
        ("trigger", "missing", QUARANTINE.name, 1, 0),
        ("trigger", "doubled", IDS.name, 1, 2),
        ("data", "missing", META.name, 2, 1),
        ("data", "doubled", DATA.name, 2, 3),
        ("data", "listed twice", "", 1, 2),
        ("outcome", "missing", OUTCOMES.name, 1, 0),
        ("outcome", "doubled", OUTCOMES.name, 1, 2),
    }


def test_segments_not_ingested_for_a_day_and_missing_segments_are_found(whole: Lake) -> None:
    archive = whole.settings.home / "archive"
    whole.archive(Stream.TRIGGER, [trigger(51, ["V5"])])
    next(archive.rglob("data/**/*.parquet")).unlink()
    catalog = open_catalog(whole.settings)
    lain = max(s.modified_at for s in Archive(whole.settings.archive).segments()) + timedelta(days=1, seconds=1)
    found, _, _ = disagreements(catalog, whole.settings, now=lain)
    assert {(f.path.split("/")[0], f.trouble) for f in found if f.trouble in ("waiting", "gone")} == {
        ("trigger", "waiting"),
        ("data", "gone"),
    }
    later = lain + timedelta(days=whole.settings.archive_retention_days)
    found, _, _ = disagreements(catalog, whole.settings, now=later)
    assert "gone" not in {f.trouble for f in found}


def test_rows_that_garbage_collection_may_have_removed_are_not_missed(whole: Lake) -> None:
    catalog = open_catalog(whole.settings)
    for table in (DATA, META, QUARANTINE):
        rewrite(catalog, table, [])
    later = NOW + timedelta(days=max(whole.settings.retention_days, whole.settings.quarantine_retention_days))
    assert disagreements(catalog, whole.settings, now=later)[0] == []


def test_a_forgotten_segment_is_new_again_and_rows_of_others_stay(whole: Lake) -> None:
    catalog = open_catalog(whole.settings)
    before = {table.name: sorted(map(str, read(catalog, table))) for table in MADE}
    double(catalog, IDS, vin="V1")
    double(catalog, DATA, data_id="d1")
    double(catalog, OUTCOMES, vin="V1")
    double(catalog, SEGMENTS, stream="data")
    wrong = {f.path for f in disagreements(catalog, whole.settings, now=NOW)[0]}
    assert len(wrong) == 3
    forget(catalog, whole.settings, [s for s in Archive(whole.settings.archive).segments() if s.path in wrong], now=NOW)
    assert [row["vin"] for row in read(catalog, IDS)] == ["V3"]
    assert [row["vin"] for row in read(catalog, OUTCOMES)] == ["V2"]
    ingest(catalog, whole.settings, run_id="again", now=NOW)
    assert troubles(whole) == set()
    assert {table.name: sorted(map(str, read(catalog, table))) for table in MADE} == before


def test_a_payload_that_several_runs_have_seen_is_not_doubled(whole: Lake) -> None:
    catalog = open_catalog(whole.settings)
    whole.archive(Stream.DATA, [data(24, "d1", b"one")])
    ingest(catalog, whole.settings, run_id="again", now=NOW)
    assert [row["data_id"] for row in read(catalog, META)].count("d1") == 2
    assert troubles(whole) == set()


@pytest.mark.parametrize(
    ("table", "fault"),
    [pytest.param(t, f, id=f"{f.__name__} {t.name}") for t, f in ((META, lose), (DATA, lose), (DATA, double))],
)
def test_a_payload_and_its_index_row_are_repaired_together(whole: Lake, table: Table, fault: Callable[..., None]) -> None:
    """Whichever of the two is missing: ingest looks payloads up in the index only."""
    catalog = open_catalog(whole.settings)
    fault(catalog, table, data_id="d2")
    wrong = {f.path for f in disagreements(catalog, whole.settings, now=NOW)[0]}
    forget(catalog, whole.settings, [s for s in Archive(whole.settings.archive).segments() if s.path in wrong], now=NOW)
    ingest(catalog, whole.settings, run_id="again", now=NOW)
    assert troubles(whole) == set()
    assert read_payloads(catalog, ["d1", "d2"]) == {"d1": b"one", "d2": b"two"}


def test_an_emptied_lake_is_refilled_from_the_archive_and_can_be_restored(whole: Lake) -> None:
    catalog = open_catalog(whole.settings)
    tables = (*MADE, META, ECQ_SEQNO)
    before = {table.name: sorted(map(str, read(catalog, table))) for table in tables}
    run_id = empty_tables(catalog, NOW)
    assert [read(catalog, table) for table in (*tables, SEGMENTS)] == [[]] * 10
    ingest(catalog, whole.settings, run_id="run", now=NOW)  # under a committed run id
    assert {table.name: sorted(map(str, read(catalog, table))) for table in tables} == before
    assert troubles(whole) == set()
    rollback(catalog, whole.settings, run_id=run_id, now=NOW)
    assert {table.name: sorted(map(str, read(catalog, table))) for table in tables} == before


def made(lake: SparkLake) -> dict[str, list[str]]:
    """Rows by table. Duplicate states count once; ingesting a segment again adds its states again."""
    rows = {table.name: sorted(map(str, lake.rows(table))) for table in MADE}
    return rows | {ECQ_STATE.name: sorted(set(rows[ECQ_STATE.name]))}


def test_a_lake_on_spark_is_repaired_and_restored(spark_lake: SparkLake, redis_server: Server) -> None:
    with Redis(port=redis_server.port) as redis:
        redis.flushall()
    settings = spark_lake.settings.model_copy(update={"redis_port": redis_server.port})
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2"]), inline(2, ["V3"], b"inside"), trigger(3, [7])])
    spark_lake.write(Stream.DATA, [data(4, "d1", b"one"), data(5, "d1", b"other")])
    spark_lake.write(Stream.OUTCOME, [outcome(6, "V1", 1)])
    spark_lake.write(Stream.ECQ, OF_QUEUES)
    (spark_lake.settings.home / "archive/trigger/broken.parquet").write_bytes(b"no Parquet file at all")
    spark_lake.ingest()
    assert check(spark_lake.catalog, settings, now=NOW).agree
    whole = made(spark_lake)

    lose(spark_lake.catalog, IDS, vin="V2")
    double(spark_lake.catalog, OUTCOMES, vin="V1")
    lose(spark_lake.catalog, DATA, data_id="d1")
    double(spark_lake.catalog, DATA, data_id=sha1_hex(b"inside"))
    lose(spark_lake.catalog, ECQ_STATE, kind="rewound")
    double(spark_lake.catalog, ECQ_INDEX, seq=seq_at(63))
    repaired_lake = repair(spark_lake.spark, spark_lake.catalog, settings, now=NOW)
    assert (repaired_lake.agree, repaired_lake.repaired) == (True, 4)
    assert made(spark_lake) == whole
    assert read_payloads(spark_lake.catalog, ["d1", sha1_hex(b"inside")]) == {"d1": b"one", sha1_hex(b"inside"): b"inside"}

    for table in (IDS, DATA, ECQ_INDEX, ECQ_STATE, SEGMENTS):
        rewrite(spark_lake.catalog, table, [])
    done = restore(spark_lake.spark, spark_lake.catalog, settings, now=NOW)
    assert (done.segments, done.runs) == (5, 1)
    assert made(spark_lake) == whole
    assert check(spark_lake.catalog, settings, now=NOW).agree

    spark_lake.file("trigger/broken.parquet").unlink()
    with pytest.raises(Permanent, match="1 segments that are in the lake are not in the archive, from trigger/broken"):
        restore(spark_lake.spark, spark_lake.catalog, settings, now=NOW)


def test_refused_bytes_are_not_the_ones_that_are_kept_after_a_killed_repair(spark_lake: SparkLake) -> None:
    """Their segment is ingested again for the sake of another payload; the original segment is gone from the archive."""
    catalog, settings = spark_lake.catalog, spark_lake.settings
    d1 = sha1_hex(b"other")  # the data_id of a trigger with these bytes
    first = spark_lake.write(Stream.DATA, [data(1, d1, b"one")])
    spark_lake.ingest("first")
    second = spark_lake.write(Stream.DATA, [data(5, d1, b"other"), data(6, "d2", b"2"), data(7, "d3", b"3")])
    inside = spark_lake.write(Stream.TRIGGER, [trigger(9, ["V1"], d1), inline(10, ["V2"], b"other"), trigger(11, [7])])
    spark_lake.ingest("second")
    refused = [seq_at(5), seq_at(10), seq_at(11)]
    assert spark_lake.rows(QUARANTINE, "seq") == refused
    lose(catalog, META, data_id=d1)
    lose(catalog, META, data_id="d2")
    lose(catalog, IDS, vin="V1")
    spark_lake.file(first).unlink()

    forget(catalog, settings, [s for s in Archive(settings.archive).segments() if s.path in (second, inside)], now=NOW)
    spark_lake.ingest("next")
    assert dict(spark_lake.rows(DATA, "data_id", "payload")) == {d1: b"one", "d2": b"2", "d3": b"3"}
    assert spark_lake.rows(QUARANTINE, "seq") == refused
    assert spark_lake.rows(IDS, "vin") == ["V1"]
    assert read_payloads(catalog, ["d2", "d3"]) == {"d2": b"2", "d3": b"3"}


def test_an_unreadable_ledger_is_dropped_last_and_only_with_consent(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty ledger next to full tables would duplicate everything with the next ingest."""
    lake.archive(Stream.TRIGGER, [trigger(1, ["V1"])])
    catalog = open_catalog(lake.settings)
    ingest(catalog, lake.settings, run_id="first", now=NOW)
    (lake.settings.home / catalog.load_table(SEGMENTS.identifier).metadata_location.rpartition("/home/")[2]).unlink()
    catalog = open_catalog(lake.settings)  # as the next process does: this catalog caches
    dropped: list[str] = []

    class Killed(BaseException):
        pass

    def killed_before_the_last(self: Catalog, identifier: str) -> None:
        if identifier == SEGMENTS.identifier:
            raise Killed
        dropped.append(identifier)
        really(self, identifier)

    really = type(catalog).drop_table
    monkeypatch.setattr(type(catalog), "drop_table", killed_before_the_last)
    with pytest.raises(Permanent, match="it is unknown whether the archive is complete"):
        restore(None, catalog, lake.settings, now=NOW)  # type: ignore[arg-type]  # refuses before it needs Spark
    assert dropped == []
    with pytest.raises(Killed):
        restore(None, catalog, lake.settings, now=NOW, without_history=True)  # type: ignore[arg-type]  # does not get that far
    assert sorted(dropped) == sorted(table.identifier for table in EVERY_RUN_TABLE if table is not SEGMENTS)
    with pytest.raises(OSError):
        ingest(catalog, lake.settings, run_id="meanwhile", now=NOW)
