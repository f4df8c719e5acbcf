"""What Spark sends to its workers with each task: how to read a file of the archive, and not which files there are."""

from pathlib import Path

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession

from manifold.archive import parsing
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from pipelines.ingest import frames
from pipelines.ingest.frames import parsed
from pipelines.ingest.reading import Source
from tests.pipelines.makers import at

LIMITS = parsing.Limits(max_ids=10, max_data_bytes=10)


@pytest.mark.slow
def test_a_task_is_as_large_whether_there_are_few_files_or_many(
    one_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    make = frames._reader

    def noting(*given: object) -> frames.Reader:
        reader = make(*given)  # type: ignore[arg-type]
        sent.append(len(CloudPickleSerializer().dumps(reader)))  # type: ignore[no-untyped-call]  # Spark's
        return reader

    monkeypatch.setattr(frames, "_reader", noting)
    for number in (1, 5000):
        paths = [f"trigger/dt=2026-03-01/hour=12/{n:020d}-0.parquet" for n in range(number)]
        segments = [Segment(path, Stream.TRIGGER, 100, at(0)) for path in paths]
        skips = {path: [1, 2, 3] for path in paths}
        source = Source(Archive(tmp_path.as_uri()), segments, skips, {}, LIMITS, aside=dict.fromkeys(range(number), "why"))
        parsed(source, one_spark, parsing.triggers, parsing.TRIGGERS)
    few, many = sent
    assert many < few + 100
