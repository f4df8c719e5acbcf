"""Compaction: fewer, larger, sorted files with the same rows; next to ingest, and repeated."""

import hashlib
from datetime import date, timedelta
from typing import Any

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, META, SEGMENTS
from manifold.lake.catalog import ensure_tables
from manifold.lake.payloads import read_payloads
from manifold.settings import Settings
from pipelines.ingest.branches import branch_of
from pipelines.ingest.publish import publish
from pipelines.ingest.write import ingest
from pipelines.maintenance.compact import Compacted, TableResult, compact
from pipelines.maintenance.compact_discover import Shape
from pipelines.maintenance.compact_plan import CompactionPolicy, Group, Work, work_of
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import NOON, at, data, seq_at, trigger
from tests.support.lake_rows import append_payloads

TODAY = date(2026, 3, 10)
SETTLED, OPEN = TODAY - timedelta(days=5), TODAY
POLICY = CompactionPolicy(target_bytes=1000, min_files=4, max_manifests=10, settled_days=2)
DAY_MS = 86_400_000
SHA1 = hashlib.sha1(b"b", usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("done", "event"),
    [
        ({}, "table examined"),
        ({"rewritten_files": 4}, "table compacted"),
        ({"manifests_rewritten": True}, "table compacted"),
        ({"folded_rows": 2}, "table compacted"),
        ({"left_alone": "run r is open"}, "table left alone"),
    ],
)
def test_the_log_calls_a_table_compacted_only_if_it_was_rewritten(done: dict[str, Any], event: str) -> None:
    shape = Shape(1, 0, 1, 1000, 0, 1)
    assert TableResult(shape, shape, **done).event == event


@pytest.mark.parametrize(
    ("groups", "work"),
    [
        pytest.param([Group(OPEN, False, True, 3, 30)], Work(), id="few small files are left alone"),
        pytest.param([Group(OPEN, False, True, 4, 40)], Work([OPEN], []), id="an open day is packed"),
        pytest.param([Group(OPEN, False, False, 9, 9000)], Work(), id="large files are left alone"),
        pytest.param(
            [Group(SETTLED, False, False, 1, 1000)], Work([], [SETTLED]), id="a settled day is sorted even if it is one file"
        ),
        pytest.param([Group(SETTLED, True, False, 2, 2000)], Work(), id="a sorted day is left alone"),
        pytest.param(
            [Group(SETTLED, True, False, 2, 2000), Group(SETTLED, False, True, 3, 30)], Work(), id="a few late rows can wait"
        ),
        pytest.param(
            [Group(SETTLED, True, False, 2, 2000), Group(SETTLED, False, True, 4, 40)],
            Work([SETTLED], []),
            id="many small late files are packed",
        ),
        pytest.param(
            [Group(SETTLED, True, False, 2, 2000), Group(SETTLED, False, True, 1, 300)],
            Work([], [SETTLED]),
            id="many late rows: the day is sorted again",
        ),
        pytest.param(
            [Group(SETTLED, True, True, 1, 500), Group(SETTLED, False, True, 4, 4)],
            Work([], [SETTLED]),
            id="a small day is sorted again rather than packed",
        ),
        pytest.param(
            [Group(None, False, True, 4, 40)], Work([], [None]), id="a table without days is sorted once it has enough files"
        ),
        pytest.param(
            [Group(None, True, False, 2, 2000), Group(None, False, True, 3, 1000)],
            Work(),
            id="a table without days and with few files is left alone",
        ),
    ],
)
def test_the_files_of_a_day_decide_whether_compaction_pays(groups: list[Group], work: Work) -> None:
    assert work_of(groups, POLICY, today=TODAY, can_sort=True) == work


def test_tables_without_vehicle_lookups_are_packed_and_never_sorted() -> None:
    assert work_of([Group(SETTLED, False, True, 4, 40)], POLICY, today=TODAY, can_sort=False) == Work([SETTLED], [])


def sighting(data_id: str, ms: int) -> dict[str, Any]:
    seen = {"first_seen_at": at(ms), "last_seen_at": at(ms), "times_seen": 1}
    return {"data_id": data_id, **seen, "sha1": SHA1, "stored_at": at(ms)}


def with_settings(spark_lake: SparkLake) -> Settings:
    return spark_lake.settings.model_copy(update={"compact_min_files": 3, "compact_max_manifests": 2})


def run(spark_lake: SparkLake, ms: int) -> Compacted:
    return compact(spark_lake.spark, spark_lake.catalog, with_settings(spark_lake), now=at(ms))


def test_small_files_are_merged_settled_days_sorted_and_rows_kept(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    for n in range(4):
        for ms in (n, 5 * DAY_MS + n):
            rows = [
                {"vin": vin, "ts": at(ms), "request_id": "r", "seq": seq_at(ms), "data_id": "d", "applied": False}
                for vin in "CAB"
            ]
            spark_lake.append(IDS, rows)
    before = spark_lake.rows(IDS)
    done = run(spark_lake, 5 * DAY_MS).tables[IDS.name]
    assert (done.before.files, done.after.files, done.after.sorted_files) == (8, 2, 1)
    assert (done.packed_days, done.sorted_days, done.rewritten_files, done.failed_files) == (1, 1, 8, 0)
    assert done.before.manifests == 8
    assert done.manifests_rewritten
    assert spark_lake.rows(IDS) == before
    name = f"{spark_lake.settings.catalog_name}.{IDS.identifier}"
    (settled,) = spark_lake.spark.sql(
        f"SELECT file_path FROM {name}.files WHERE partition.ts_day = DATE '{NOON.date()}'"
    ).collect()
    in_file = [row["vin"] for row in spark_lake.spark.read.parquet(settled["file_path"]).select("vin").collect()]
    assert in_file == sorted(in_file)
    again = run(spark_lake, 5 * DAY_MS).tables[IDS.name]
    assert again.rewritten_files == 0
    assert again.before == again.after == done.after


def test_an_ingest_that_began_earlier_is_published_afterwards(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    for n in range(3):
        spark_lake.append(META, [sighting(f"d{n}", n)])
        spark_lake.append(
            DATA, [{"data_id": f"d{n}", "payload": b"b", "sha1": SHA1, "size_bytes": 1, "seq": n, "first_seen_at": at(n)}]
        )
        spark_lake.append(SEGMENTS, [{"path": f"p{n}", "stream": "data", "messages": 1, "run_id": "r", "ingested_at": at(n)}])
    spark_lake.write(Stream.TRIGGER, [trigger(9, ["V9"])])
    spark_lake.write(Stream.DATA, [data(9, "d0", b"b")])
    ingest(spark_lake.run("run", 10))
    done = run(spark_lake, 10).tables
    assert done[META.name].rewritten_files == 3
    assert done[SEGMENTS.name].left_alone == f"run {branch_of('run')} is open"
    publish(spark_lake.catalog, "run")
    assert spark_lake.rows(IDS, "vin") == ["V9"]
    assert spark_lake.seen("data_id", "times_seen") == [("d0", 2), ("d1", 1), ("d2", 1)]
    assert run(spark_lake, 10).tables[SEGMENTS.name].after.files == 2  # one for rows without a day, one for the day
    assert len(spark_lake.rows(SEGMENTS)) == 5
    assert spark_lake.ingest("afterwards").segments == 0


def test_rows_deleted_by_delete_files_are_gone_from_the_data_files(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    spark_lake.append(META, [sighting(f"d{n}", 1) for n in range(4)])
    name = f"{spark_lake.settings.catalog_name}.{META.identifier}"
    spark_lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark_lake.spark.sql(f"DELETE FROM {name} WHERE data_id = 'd1'")
    done = run(spark_lake, 10).tables[META.name]
    assert (done.before.delete_files, done.after.delete_files, done.after.files) == (1, 0, 1)
    assert spark_lake.rows(META, "data_id") == ["d0", "d2", "d3"]


def test_payload_reads_skip_rows_that_delete_files_removed(spark_lake: SparkLake) -> None:
    ensure_tables(spark_lake.catalog)
    payloads = {f"d{n}": b"payload %d" % n for n in range(4)}
    append_payloads(spark_lake.catalog, payloads, at=at(1))
    for table, gone in ((DATA, "d1"), (META, "d2")):
        name = f"{spark_lake.settings.catalog_name}.{table.identifier}"
        spark_lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
        spark_lake.spark.sql(f"DELETE FROM {name} WHERE data_id = '{gone}'")
        assert any(task.delete_files for task in spark_lake.catalog.load_table(table.identifier).scan().plan_files())
    assert read_payloads(spark_lake.catalog, payloads) == {"d0": b"payload 0", "d3": b"payload 3"}
