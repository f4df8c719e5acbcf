"""A long backlog is published in several runs, and resumes after an interruption."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from manifold.archive.segment import Segment
from manifold.contracts.envelope import Stream
from manifold.contracts.tables import DATA, IDS, OUTCOMES, SEGMENTS
from pipelines.ingest import backlog
from pipelines.ingest.backlog import OPEN_COST_BYTES, groups_of, ingest_before_last, ingest_in_runs, runs_of
from pipelines.ingest.publish import committed_runs, publish
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import at, data, outcome, seq_at, trigger
from tests.pipelines.plain import ingest_and_audit, without_spark


def segment(path: str, size: int) -> Segment:
    return Segment(path, Stream.TRIGGER, size, datetime(2026, 3, 1, tzinfo=UTC))


def test_groups_keep_order_and_limit_and_oversized_segments_are_alone() -> None:
    mb = 1 << 20
    segments = [segment(str(n), size * mb) for n, size in enumerate([3, 4, 1, 20, 2, 2])]
    groups = [[s.size // mb for s in group] for group in groups_of(segments, 8 * mb)]
    assert groups == [[3, 4, 1], [20], [2, 2]]


def test_tiny_segments_count_with_their_opening_cost() -> None:
    segments = [segment(str(n), 100) for n in range(25)]
    assert [len(group) for group in groups_of(segments, 10 * OPEN_COST_BYTES)] == [10, 10, 5]


def test_the_last_run_has_the_expected_run_id_and_others_are_named_by_content() -> None:
    segments = [segment(str(n), 1) for n in range(3)]
    first = list(runs_of(segments, 1, "run"))
    assert [run_id == "run" for run_id, _ in first] == [False, False, True]
    assert list(runs_of(segments[1:], 1, "run")) == first[1:]
    assert all(run_id != "run" for run_id, _ in runs_of(segments, 1, "run", was_published=True))
    assert list(runs_of([], 1, "run")) == []


@pytest.fixture
def four_segments(spark_lake: SparkLake) -> SparkLake:
    """Four segments, each larger than one run may take."""
    spark_lake.settings = spark_lake.settings.model_copy(update={"ingest_max_bytes": 1})
    spark_lake.write(Stream.OUTCOME, [outcome(40, "V1", 1)])
    spark_lake.write(Stream.TRIGGER, [trigger(20, ["V2"])])
    spark_lake.write(Stream.TRIGGER, [trigger(1, ["V1"])])
    spark_lake.write(Stream.DATA, [data(30, "d1", b"one")])
    return spark_lake


def counts(spark_lake: SparkLake) -> list[int]:
    return [len(spark_lake.rows(table)) for table in (IDS, DATA, OUTCOMES, SEGMENTS)]


@pytest.mark.usefixtures("unaudited")
def test_a_backlog_is_published_oldest_first_in_whole_runs(four_segments: SparkLake) -> None:
    seen: list[list[int]] = []
    done = ingest_in_runs(four_segments.run("run", 100), after_each=lambda: seen.append(counts(four_segments)))
    assert seen == [[1, 0, 0, 1], [2, 0, 0, 2], [2, 1, 0, 3], [2, 1, 1, 4]]
    assert (len(done.runs), done.runs[-1], done.ingested.segments) == (4, "run", 4)
    assert done.ingested.written == {IDS.name: 2, DATA.name: 1, "sdv_fanout_meta": 1, OUTCOMES.name: 1, SEGMENTS.name: 4}
    assert len(committed_runs(four_segments.catalog.load_table(SEGMENTS.identifier))) == 4


def test_an_interrupted_backlog_continues_with_the_rest(four_segments: SparkLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "ingest_and_audit", ingest_and_audit)
    run, left = partial(without_spark, four_segments.catalog, four_segments.settings, "run"), [2]

    def dies(*args: Any, **named: Any) -> bool:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return publish(*args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(backlog, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            ingest_in_runs(run(at(100)))
    assert counts(four_segments) == [2, 0, 0, 2]
    _, last = ingest_before_last(run(at(200)))
    assert isinstance(last.part, list)
    assert [s.stream for s in last.part] == [Stream.OUTCOME]
    assert counts(four_segments) == [2, 1, 0, 3]  # the last is for the tasks that depend on the run
    ingest_in_runs(run(at(300)))
    assert counts(four_segments) == [2, 1, 1, 4]
    assert sorted(four_segments.rows(IDS, "seq")) == [seq_at(1), seq_at(20)]
