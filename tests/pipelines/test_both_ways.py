"""Spark and one process without it make the same tables of the same archive, and judge them alike."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from manifold.contracts.envelope import Envelope, Stream
from manifold.contracts.messages import sha1_hex
from manifold.contracts.outcomes import Outcome
from manifold.contracts.tables import META, QUALITY, RUN_TABLES, SEGMENTS, Table
from manifold.lake.catalog import ensure_tables
from pipelines.ingest import arrow_path, audit
from pipelines.ingest.arrow_audit import ALONE, BESIDE_SPARK
from pipelines.ingest.branches import COUNTED, properties_of
from pipelines.ingest.run_all import ingest_audit_publish
from pipelines.ingest.write import ingest
from pipelines.spark.needed import NeedsSpark
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, duplicate, ecq_ack, ecq_rewind, ecq_write, envelope, inline, outcome, trigger

pytestmark = pytest.mark.slow

VINS = ("V1", "1HGCM82633A004352", "WMANF0LD000000001", "x-9")
DATA_IDS = ("d1", "d2", sha1_hex(b"hello"))
PAYLOADS = (b"one", b"two", b"hello", b"")


def messages(chance: random.Random, first_ms: int) -> dict[Stream, list[Envelope]]:
    """What a recorder may have written: good and bad, known and new, in one order."""
    made: dict[Stream, list[Envelope]] = {stream: [] for stream in Stream}
    for ms in range(first_ms, first_ms + chance.randint(3, 25)):
        vins = chance.sample(VINS, chance.randint(1, len(VINS)))
        made_now = chance.choice(
            [
                trigger(ms, vins, chance.choice(DATA_IDS), applied=chance.random() < 0.5),
                trigger(ms, [*vins, 7]),
                trigger(ms, vins, refused_because="said the door"),
                inline(ms, vins, chance.choice(PAYLOADS)),
                duplicate(ms, first_ms, vins),
                data(ms, chance.choice(DATA_IDS), chance.choice(PAYLOADS)),
                data(ms, "d 1", b"a name that cannot be one"),
                outcome(ms, chance.choice(VINS), chance.randint(0, ms), chance.choice(list(Outcome))),
                envelope(ms, Stream.OUTCOME, "outcomes/V2", b"{"),
                ecq_write(ms, chance.choice(VINS), chance.choice(("a", "a/b", "k" * 513)), chance.choice(PAYLOADS)),
                ecq_ack(ms, chance.choice(VINS), chance.randint(0, ms)),
                ecq_rewind(ms, chance.choice(VINS)),
            ]
        )
        made[made_now.stream].append(made_now)
    return {stream: found for stream, found in made.items() if found}


def write(spark_lake: SparkLake, chance: random.Random, first_ms: int) -> None:
    """As segments, sometimes twice; and sometimes a file that is none."""
    for stream, found in messages(chance, first_ms).items():
        spark_lake.write(stream, found)
        if chance.random() < 0.3:
            spark_lake.write(stream, found[len(found) // 2 :], node=1)
        if chance.random() < 0.2:
            torn = spark_lake.write(stream, found, node=2)
            spark_lake.file(torn).write_bytes(b"not Parquet at all, but long enough")


def rows(spark_lake: SparkLake, table: Table) -> list[Any]:
    return spark_lake.rows(table, *(column.name for column in table.columns if column.name != "ingested_at"))


def verdicts(spark_lake: SparkLake) -> list[Any]:
    return spark_lake.rows(QUALITY, "suite", "rule", "severity", "outcome", "judged", "unexpected", "run_id")


@pytest.mark.timeout(1200)
def test_the_same_segments_make_the_same_tables_and_the_same_verdicts(
    new_spark_lake: Callable[..., SparkLake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another archive each time: one is a minute of Spark, and nothing is learnt from the same one again."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"{seed=}")  # noqa: T201  # shown where it fails, to be put in the place of the line above
    places = [new_spark_lake(tmp_path / ("arrow" if small else "spark"), small=small) for small in (False, True)]
    for run in (0, 1):
        numbers, counted = [], []
        monkeypatch.setattr(audit, "BESIDE_SPARK", replace(BESIDE_SPARK, rows=12 * run))  # all on Spark; then some tables of each
        for each in places:
            write(each, random.Random(f"{seed} {run}"), 1000 * run)
            done, _, warnings = ingest_audit_publish(each.run(f"run{run}", 5000 + run))
            done.written.pop(META.name, None)  # of whole files that change, which each engine divides in its own way
            numbers.append((asdict(done), warnings))
            segments = each.catalog.load_table("sdv.ingested_segments").snapshots()
            counted.append([properties_of(snapshot).get(COUNTED) for snapshot in segments])
        assert numbers[0] == numbers[1]
        assert counted[0] == counted[1]
    for table in RUN_TABLES:
        assert rows(places[0], table) == rows(places[1], table), table.name
    assert verdicts(places[0]) == verdicts(places[1])


def test_what_is_too_much_is_left_to_spark_and_spark_takes_it(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_path, "MOST_IDS", 2)
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2", "V3"])])
    spark_lake.write(Stream.DATA, [data(2, "d1", b"one")])
    spark_lake.small = True
    with pytest.raises(NeedsSpark, match="more than 2 entries"):
        ingest(spark_lake.run("run", 10))
    assert spark_lake.rows(RUN_TABLES[2]) == []

    spark_lake.small = False
    ingest_audit_publish(spark_lake.run("run", 10))
    assert spark_lake.rows(RUN_TABLES[2], "vin") == ["V1", "V2", "V3"]
    assert at(2) in spark_lake.rows(RUN_TABLES[0], "first_seen_at")


@pytest.mark.parametrize("small", [True, False], ids=["alone", "beside Spark"])
def test_an_audit_that_would_look_through_too_many_rows_is_left_to_spark(
    spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    spark_lake.write(Stream.OUTCOME, [outcome(2, "V1", 1, Outcome.DELIVERED)])
    spark_lake.small = small
    run = spark_lake.run("run", 10)
    ingest(run)
    monkeypatch.setattr(audit, "ALONE" if small else "BESIDE_SPARK", replace(ALONE, read=0))
    with pytest.raises(NeedsSpark, match="rows of ingested_segments are to be looked through") if small else nullcontext():
        audit.audit_run(run)
    assert bool(verdicts(spark_lake)) != small


def test_a_ledger_with_segments_of_no_day_is_looked_through(spark_lake: SparkLake) -> None:
    """Their paths say no day. Of the library see https://github.com/apache/iceberg-python/issues/3498."""
    spark_lake.small = True
    ensure_tables(spark_lake.catalog)
    of_no_day = {"stream": "trigger", "messages": 1, "run_id": "earlier", "ingested_at": at(0)}
    spark_lake.append(SEGMENTS, [of_no_day | {"path": f"trigger/{name}.jsonl"} for name in ("a", "z")])
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2"], "d1")])
    ingest_audit_publish(spark_lake.run("run", 10))
    assert spark_lake.rows(SEGMENTS, "run_id") == ["earlier", "earlier", "run"]


def test_few_rows_are_judged_in_memory_beside_spark(spark_lake: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(audit, "added")
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1", "V2"], "d1")])
    spark_lake.write(Stream.DATA, [data(2, "d1", b"one")])
    ingest_audit_publish(spark_lake.run("run", 10))
    assert verdicts(spark_lake)
