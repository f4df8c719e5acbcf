"""Sightings of payloads on Spark: folded as readers fold them, and by compaction, which changes no answer."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, META, QUARANTINE, SEGMENTS
from manifold.history.from_lake import Lake as History
from manifold.lake import sightings
from manifold.lake.payloads import read_payloads
from manifold.settings import Settings
from pipelines.ingest import write_payloads
from pipelines.ingest.attempt import Attempt
from pipelines.ingest.backlog import ingest_audit_publish
from pipelines.ingest.branches import Overtaken
from pipelines.ingest.publish import publish
from pipelines.ingest.write import ingest
from pipelines.maintenance import sightings_compact
from pipelines.maintenance.compact import compact, has_work
from tests.pipelines.conftest import Kept, SparkLake, in_order, kept
from tests.pipelines.makers import at, data, seq_at

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
def test_spark_folds_rows_as_readers_do(spark_lake: SparkLake, seed: int) -> None:
    chance = Random(seed)

    def row() -> dict[str, Any]:
        times = {name: at(chance.randrange(9)) for name in ("first_seen_at", "last_seen_at", "stored_at")}
        return {"data_id": chance.choice("abcd"), **times, "times_seen": chance.randrange(1, 4), "sha1": chance.choice("01")}

    rows = pa.Table.from_pylist([row() for _ in range(40)], schema=META.arrow_schema)
    by_spark = write_payloads.folded(spark_lake.spark.createDataFrame(rows)).toArrow()
    assert by_spark.column_names == META.arrow_schema.names
    assert in_order(by_spark) == in_order(sightings.folded(rows))


# Three runs see `d1`, the first of them twice and the last one earlier messages; one sees `d2`.
RUNS = (
    [data(10, "d1", b"one"), data(11, "d1", b"one")],
    [data(20, "d1", b"one"), data(21, "d2", b"two")],
    [data(5, "d1", b"one")],
)


@pytest.fixture(scope="module")
def made(new_spark_lake: Callable[[Path], SparkLake], tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A lake that has these runs, without Spark."""
    lake = new_spark_lake(tmp_path_factory.mktemp("seen") / "home")
    for number, messages in enumerate(RUNS):
        lake.write(Stream.DATA, messages)
        lake.ingest_plainly(f"run{number}", 30 + number)
    return kept(lake)


@pytest.fixture
def seen(made: Kept) -> SparkLake:
    return made.renewed()


def settings_of(lake: SparkLake) -> Settings:
    return lake.settings.model_copy(update={"compact_min_files": 3})


def answers(lake: SparkLake) -> tuple[Any, ...]:
    history = History(lake.catalog)
    return lake.seen(), [history.data_seen(name) for name in ("d1", "d2", "d3")], read_payloads(lake.catalog, ["d1", "d2", "d3"])


def test_a_run_adds_a_row_for_each_payload_that_it_saw(spark_lake: SparkLake) -> None:
    for number, messages in enumerate(RUNS):
        spark_lake.write(Stream.DATA, messages)
        spark_lake.ingest(f"run{number}", ms=30 + number)
    sha1 = dict(spark_lake.rows(DATA, "data_id", "sha1"))
    assert spark_lake.rows(META) == [
        ("d1", at(10), at(11), 2, sha1["d1"], at(10)),
        ("d1", at(20), at(20), 1, sha1["d1"], at(10)),
        ("d1", at(5), at(5), 1, sha1["d1"], at(10)),
        ("d2", at(21), at(21), 1, sha1["d2"], at(21)),
    ]
    assert spark_lake.seen() == [("d1", at(5), at(20), 4, sha1["d1"], at(10)), ("d2", at(21), at(21), 1, sha1["d2"], at(21))]


def test_a_run_that_is_repeated_adds_no_row(seen: SparkLake) -> None:
    rows = seen.rows(META)
    for run_id in ("run2", "run0", "another"):
        ingest_audit_publish(seen.run(run_id, 40))
    assert seen.rows(META) == rows


@pytest.mark.usefixtures("unaudited")
def test_compaction_leaves_one_row_of_each_payload_and_changes_no_answer(seen: SparkLake) -> None:
    before = answers(seen)
    assert has_work(seen.catalog, settings_of(seen), now=at(40))
    done = compact(seen.spark, seen.catalog, settings_of(seen), now=at(40)).tables[META.name]
    assert (done.folded_rows, done.after.files, done.after.sorted_files) == (2, 1, 1)
    assert seen.rows(META) == seen.seen()
    assert answers(seen) == before
    again = compact(seen.spark, seen.catalog, settings_of(seen), now=at(40)).tables[META.name]
    assert (again.folded_rows, again.rewritten_files) == (0, 0)

    seen.write(Stream.DATA, [data(50, "d1", b"other"), data(51, "d1", b"one"), data(52, "d3", b"three")])
    ingest_audit_publish(seen.run("more", 60))
    assert seen.rows(QUARANTINE, "seq") == [seq_at(50)]
    assert seen.rows(DATA, "data_id") == ["d1", "d2", "d3"]
    assert seen.seen("data_id", "first_seen_at", "last_seen_at", "times_seen", "stored_at") == [
        ("d1", at(5), at(51), 5, at(10)),
        ("d2", at(21), at(21), 1, at(21)),
        ("d3", at(52), at(52), 1, at(52)),
    ]


def test_an_ingest_that_compaction_overtakes_counts_once(seen: SparkLake) -> None:
    seen.write(Stream.DATA, [data(50, "d1", b"one")])
    ingest(seen.run("open", 60))
    compact(seen.spark, seen.catalog, settings_of(seen), now=at(60))
    with pytest.raises(Overtaken):
        publish(seen.catalog, "open")
    seen.ingest("open", ms=61)
    assert seen.seen("data_id", "times_seen") == [("d1", 5), ("d2", 1)]


def test_a_compaction_that_an_ingest_overtakes_is_done_again(seen: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    overwrite = Attempt.overwrite

    def overtaken(*given: Any) -> None:
        times.append(1)
        if len(times) == 1:
            seen.write(Stream.DATA, [data(50, "d1", b"one")])
            seen.ingest("meanwhile")
        overwrite(*given)

    monkeypatch.setattr(Attempt, "overwrite", overtaken)
    assert sightings_compact.merge_sightings(seen.spark, seen.catalog, settings_of(seen), now=at(60)) == 3
    assert len(times) == 2
    assert seen.rows(META, "data_id", "times_seen") == [("d1", 5), ("d2", 1)]
    refs = {name for table in (META, SEGMENTS) for name in seen.catalog.load_table(table.identifier).refs()}
    assert refs == {"main"}
