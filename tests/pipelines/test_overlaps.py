"""Segments overlap if they may hold the same message: those of one recorder, and those of unknown origin."""

from typing import Any

import pyarrow.parquet as pq
import pytest

from manifold.archive.probing import seqs_of
from manifold.archive.store import Archive
from manifold.contracts.envelope import Envelope, Stream, to_arrow
from manifold.contracts.tables import IDS, QUARANTINE, SEGMENTS
from manifold.lake.catalog import open_catalog
from pipelines.ingest import planning
from pipelines.ingest.planning import Plan, make_plan
from tests.pipelines.conftest import SparkLake
from tests.pipelines.lakes import Lake
from tests.pipelines.makers import at, seq_at, trigger
from tests.pipelines.plain import ingest

SEGMENT_MS = 30_000
EACH = 120


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments whose seqs were read for comparison."""
    paths: list[str] = []
    whole = seqs_of

    def noting(archive: Archive, path: str) -> Any:
        paths.append(path)
        return whole(archive, path)

    monkeypatch.setattr(planning, "seqs_of", noting)
    return paths


def planned(lake: Lake) -> Plan:
    return make_plan(open_catalog(lake.settings), Archive(lake.settings.archive))


def of(ms: int, node: int) -> Envelope:
    return trigger(ms, [f"V{node}-{ms}"], node=node)


def put(lake: Lake, path: str, *envelopes: Envelope) -> str:
    file = lake.settings.home / "archive" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(to_arrow(envelopes), file)
    return path


def test_concurrent_segments_of_two_recorders_are_not_compared(lake: Lake, read: list[str]) -> None:
    lake.renew()
    for start in range(0, EACH * SEGMENT_MS, SEGMENT_MS):
        for node in (0, 1):
            lake.archive(Stream.TRIGGER, [of(start + node, node), of(start + SEGMENT_MS - 1000, node)], node=node)
    todo = planned(lake)
    assert len(todo.segments) == 2 * EACH
    assert (read, dict(todo.skips), dict(todo.problems)) == ([], {}, {})


def test_new_segments_are_not_compared_with_ingested_ones_of_another_recorder(lake: Lake, read: list[str]) -> None:
    lake.renew()
    lake.archive(Stream.TRIGGER, [of(1, 0), of(SEGMENT_MS, 0)])
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    lake.archive(Stream.TRIGGER, [of(2, 1), of(SEGMENT_MS - 1, 1)], node=1)
    assert len(planned(lake).segments) == 1
    assert read == []


def test_messages_that_one_recorder_archived_twice_are_found(lake: Lake, read: list[str]) -> None:
    lake.renew()
    known = lake.archive(Stream.TRIGGER, [of(1, 3), of(5, 3)], node=3)
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    again = lake.archive(Stream.TRIGGER, [of(3, 3), of(5, 3), of(9, 3)], node=3)
    assert planned(lake).skips == {again: [seq_at(5, 3)]}
    assert set(read) == {known, again}


@pytest.mark.parametrize("name", ["merged.parquet", "0-0.parquet", f"{seq_at(1)}-1.parquet", f"{seq_at(2)}-0.parquet"])
def test_a_file_without_a_recorder_in_its_name_is_compared_with_all(lake: Lake, name: str) -> None:
    lake.renew()
    lake.archive(Stream.TRIGGER, [of(2, 1), of(4, 1)], node=1)
    ingest(open_catalog(lake.settings), lake.settings, run_id="run", now=at(0))
    merged = put(lake, f"trigger/dt=2026-03-01/hour=12/{name}", of(1, 0), of(2, 1), of(3, 0))
    assert planned(lake).skips == {merged: [seq_at(2, 1)]}


def test_a_file_with_seqs_of_another_recorder_than_its_name_is_refused(spark_lake: SparkLake) -> None:
    spark_lake.write(Stream.TRIGGER, [of(2, 1), of(4, 1)], node=1)
    spark_lake.ingest("first")
    path = spark_lake.write(Stream.TRIGGER, [of(1, 0), of(2, 1), of(3, 0)])
    spark_lake.ingest("second")
    assert sorted(spark_lake.rows(IDS, "seq")) == [seq_at(2, 1), seq_at(4, 1)]
    (reason,) = [why for where, why in spark_lake.rows(SEGMENTS, "path", "refused_because") if where == path]
    assert reason == "its name says that recorder 0 wrote it, and it has seqs of recorder 1; give it another name"
    assert spark_lake.rows(QUARANTINE, "topic") == [path]

    spark_lake.file(path).rename(spark_lake.file(path).with_name("merged.parquet"))
    spark_lake.ingest("third")
    assert sorted(spark_lake.rows(IDS, "seq")) == sorted([seq_at(1, 0), seq_at(3, 0), seq_at(2, 1), seq_at(4, 1)])
