"""Lists that Spark sends to its workers with the function that reads the archive."""

import pytest

from manifold.archive import parsing
from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from pipelines.ingest.reading import Source, read_and_parse
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, seq_at, trigger

LIMITS = parsing.Limits(max_ids=10, max_data_bytes=10)
MANY = 400_000  # seqs; pickled, they exceed the 1 MiB above which PySpark broadcasts a function


@pytest.mark.slow
def test_lists_larger_than_a_task_limit_reach_the_workers(spark_lake: SparkLake) -> None:
    path = spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"]), trigger(2, ["V2"])])
    aside = dict.fromkeys(range(MANY), "other") | {seq_at(2): "set aside"}
    segments = [Segment(path, Stream.TRIGGER, 100, at(0))]
    source = Source(spark_lake.run("run").archive, segments, {}, {}, LIMITS, offenders=aside)
    rows = read_and_parse(source, spark_lake.spark, parsing.triggers, parsing.TRIGGERS).select("seq", "reason").collect()
    assert {row["seq"]: row["reason"] for row in rows} == {seq_at(1): None, seq_at(2): "set aside"}
