"""Rollback of a run: every table is restored, nothing interferes, and the next ingest adds the run again."""

import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import DATA, ECQ_INDEX, ECQ_PAYLOAD, ECQ_SEQNO, ECQ_STATE, IDS, META, QUARANTINE, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest.branches import RUN_ID, properties_of
from pipelines.ingest.publish import committed_runs, finish_committed_runs, is_published
from pipelines.maintenance.rollback import rollback
from tests.pipelines.conftest import SparkLake
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, data, ecq_ack, ecq_write, seq_at, trigger
from tests.pipelines.plain import compact, ingest, read, sightings

ECQ = (ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE, ECQ_SEQNO)
TAKEN_IN = (IDS, DATA, QUARANTINE, ECQ_INDEX, ECQ_PAYLOAD, ECQ_STATE)  # independent of runs: ecq_seqno has a row for each


def take_in(lake: Lake, run_id: str) -> None:
    ingest(open_catalog(lake.settings), lake.settings, run_id=run_id, now=at(0))


@pytest.fixture
def three_runs(lake: Lake) -> Lake:
    """Runs `one`, `two` and `three`, each with a vehicle, a message and an acknowledgement of a compacted queue.

    `two` and `three` publish the same data.
    """
    lake.renew()
    for spark_lake, run_id in enumerate(("one", "two", "three"), start=1):
        lake.archive(Stream.TRIGGER, [trigger(spark_lake, [f"V{spark_lake}"]), trigger(spark_lake + 10, [7])])
        if spark_lake > 1:
            lake.archive(Stream.DATA, [data(spark_lake + 20, "d1", b"one")])
        lake.archive(Stream.ECQ, [ecq_write(spark_lake + 30, "C", "k", b"x"), ecq_ack(spark_lake + 40, "C", spark_lake + 29)])
        take_in(lake, run_id)
    return lake


def test_every_table_is_restored_and_the_next_ingest_adds_everything_again(three_runs: Lake) -> None:
    lake, catalog = three_runs, open_catalog(three_runs.settings)
    taken_in = {table.name: read(catalog, table) for table in TAKEN_IN}
    done = rollback(catalog, lake.settings, run_id="two", now=at(0))
    assert (done.undone, done.segments) == (["three", "two"], 6)
    assert [row["vin"] for row in read(catalog, IDS)] == ["V1"]
    assert (read(catalog, DATA), read(catalog, META)) == ([], [])
    assert (len(read(catalog, QUARANTINE)), len(read(catalog, SEGMENTS))) == (1, 2)
    assert {table.name: len(read(catalog, table)) for table in ECQ} == dict.fromkeys((table.name for table in ECQ), 1)
    assert (
        [row["seq"] for row in read(catalog, ECQ_INDEX)] == [row["last_seq"] for row in read(catalog, ECQ_SEQNO)] == [seq_at(31)]
    )
    assert [is_published(catalog, name) for name in ("one", "two", "three")] == [True, False, False]

    take_in(lake, "two")  # Airflow's `clear` repeats the same run
    for table in TAKEN_IN:
        assert sorted(map(str, read(catalog, table))) == sorted(map(str, taken_in[table.name]))
    assert max(row["last_seq"] for row in read(catalog, ECQ_SEQNO)) == seq_at(33)
    assert [row["times_seen"] for row in sightings(catalog)] == [2]
    assert is_published(catalog, "two")


def test_a_rollback_can_be_undone(three_runs: Lake) -> None:
    catalog = open_catalog(three_runs.settings)
    done = rollback(catalog, three_runs.settings, run_id="one", now=at(0))
    assert [read(catalog, table) for table in (IDS, *ECQ)] == [[]] * 5
    rollback(catalog, three_runs.settings, run_id=done.run_id, now=at(0))
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2", "V3"]
    assert sorted(row["seq"] for row in read(catalog, ECQ_INDEX)) == [seq_at(31), seq_at(32), seq_at(33)]
    assert is_published(catalog, "three")
    take_in(three_runs, "four")
    assert len(read(catalog, IDS)) == 3


def test_a_rollback_is_published_although_compaction_rewrote_main(three_runs: Lake) -> None:
    catalog = open_catalog(three_runs.settings)
    compact(catalog, IDS)
    player = three_runs.player(lambda c: rollback(c, three_runs.settings, run_id="three", now=at(0)))
    player.go(until="commit sdv.ingested_segments")  # opens
    player.go(1).go(until="commit sdv.ingested_segments")  # about to commit
    compact(catalog, IDS)
    player.go()
    assert sorted(row["vin"] for row in read(catalog, IDS)) == ["V1", "V2"]


def test_a_run_rebased_on_a_compacted_main_is_taken_back(lake: Lake) -> None:
    lake.renew()
    catalog = open_catalog(lake.settings)
    lake.archive(Stream.DATA, [data(1, "d1", b"one"), data(2, "d2", b"two")])
    take_in(lake, "one")
    lake.archive(Stream.DATA, [data(11, "d1", b"one"), data(12, "d3", b"three")])
    player = lake.ingesting("two")
    while player.steps.count("commit sdv.ingested_segments") < 2:  # it opens, and is about to count
        player.go(1)
    assert compact(catalog, META)
    player.go()
    seen = {row["data_id"]: row["times_seen"] for row in sightings(catalog)}
    assert seen == {"d1": 2, "d2": 1, "d3": 1}
    assert rollback(catalog, lake.settings, run_id="two", now=at(20)).undone == ["two"]
    assert {row["data_id"]: row["times_seen"] for row in sightings(catalog)} == {"d1": 1, "d2": 1}


def test_concurrent_completions_and_ingests_do_not_revive_the_run(three_runs: Lake) -> None:
    """The rollback is paused before each step while others finish runs and ingest; then it continues or dies."""
    lake = three_runs
    catalog = open_catalog(lake.settings)
    for steps in range(8):
        name = properties_of(committed_runs(catalog.load_table(SEGMENTS.identifier))[0])[RUN_ID]
        player = lake.player(lambda c, name=name: rollback(c, lake.settings, run_id=name, now=at(0))).go(steps)  # type: ignore[misc]
        finish_committed_runs(open_catalog(lake.settings))
        lake.archive(Stream.TRIGGER, [trigger(100 + steps, [f"W{steps}"])])
        take_in(lake, f"again_{steps}")
        if steps % 2:
            player.kill()
        else:
            player.go()
        take_in(lake, f"more_{steps}")
        vins = sorted(row["vin"] for row in read(catalog, IDS))
        assert vins == ["V1", "V2", "V3", *(f"W{n}" for n in range(steps + 1))], player.steps
        assert [row["times_seen"] for row in sightings(catalog)] == [2], player.steps


def test_a_run_that_cannot_be_ingested_again_is_not_rolled_back(three_runs: Lake) -> None:
    catalog = open_catalog(three_runs.settings)
    next((three_runs.settings.home / "archive").rglob("data/**/*.parquet")).unlink()
    with pytest.raises(Permanent, match="1 segments of these runs are not in the archive any more, data/dt=2026-03-01"):
        rollback(catalog, three_runs.settings, run_id="two", now=at(0))
    with pytest.raises(Permanent, match=r"run nine is not committed.*three, two, one"):
        rollback(catalog, three_runs.settings, run_id="nine", now=at(0))
    assert len(read(catalog, IDS)) == 3


def test_spark_reads_a_rolled_back_lake(spark_lake: SparkLake) -> None:
    for ms, run_id in ((1, "one"), (2, "two")):
        spark_lake.write(Stream.TRIGGER, [trigger(ms, [f"V{ms}"])])
        spark_lake.ingest(run_id)
    rollback(spark_lake.catalog, spark_lake.settings, run_id="two", now=at(0))
    table = f"{spark_lake.settings.catalog_name}.{IDS.identifier}"
    spark_lake.spark.sql(f"REFRESH TABLE {table}")
    assert [row["vin"] for row in spark_lake.spark.table(table).collect()] == ["V1"]
    spark_lake.ingest("two")
    assert spark_lake.rows(IDS, "vin") == ["V1", "V2"]
