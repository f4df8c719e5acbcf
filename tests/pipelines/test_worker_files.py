"""What workers write by themselves: in files as they come, all or nothing of a part, and without what is left out."""

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from manifold.archive import parsing
from manifold.contracts.envelope import Stream, to_arrow
from manifold.contracts.tables import IDS
from manifold.lake.data_files import DataFiles
from manifold.settings import Settings
from pipelines.ingest import arrow_rows, worker_files
from pipelines.ingest.worker_files import Rows, Work, Written
from tests.pipelines.conftest import SparkLake
from tests.pipelines.makers import seq_at, trigger
from tests.support.lake_rows import new_lake

LIMITS = parsing.Limits(max_ids=10, max_data_bytes=10)
A_DAY_MS = 86_400_000


class Shared:
    """What a worker has of a broadcast."""

    def __init__(self, *seqs: int) -> None:
        self.value = pa.array(seqs, pa.int64())


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return new_lake(Settings(home=tmp_path))


def counts(refused: pa.Table, accepted: pa.Table) -> tuple[int, int]:
    return refused.num_rows, accepted.num_rows


def work_of(
    catalog: Catalog, batches: Iterable[pa.RecordBatch], *but: int, rows_of: Rows = arrow_rows.ids_rows
) -> Written[tuple[int, int]]:
    """What one worker makes of one part."""
    target = DataFiles.of(catalog.load_table(IDS.identifier), level=1)
    work = Work(parsing.triggers, parsing.TRIGGERS, ((IDS, rows_of),), counts)
    write = worker_files._writer(lambda _: batches, work, [target], Shared(*but))  # type: ignore[arg-type]  # as Spark's
    (answer,) = write([])
    written: Written[tuple[int, int]] = pickle.loads(answer["written"][0].as_py())
    return written


def batches_of(*triggers: Any) -> Iterator[pa.RecordBatch]:
    """Each message in a batch of its own."""
    for one in triggers:
        yield from parsing.triggers(to_arrow([one]), LIMITS)


def files_in(catalog: Catalog) -> list[Path]:
    folder = catalog.load_table(IDS.identifier).location().removeprefix("file://")
    return sorted(Path(folder).rglob("*.parquet"))


def test_rows_become_a_file_when_they_are_enough_and_one_at_the_end(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = list(batches_of(*(trigger(ms, [f"V{ms}"]) for ms in range(5))))
    written = work_of(catalog, batches)
    assert [file.record_count for file in written.files[IDS.name]] == [5]
    assert written.told == [(0, 1)] * 5
    monkeypatch.setattr(worker_files, "FILE_BYTES", 2 * arrow_rows.ids_rows(pa.Table.from_batches(batches[:1])).nbytes)
    assert [file.record_count for file in work_of(catalog, batches).files[IDS.name]] == [2, 2, 1]


def test_what_is_left_out_is_in_no_file_and_in_no_count(catalog: Catalog) -> None:
    batches = list(batches_of(trigger(1, ["V1"]), trigger(2, ["V2", "V3"]), trigger(3, [7])))
    written = work_of(catalog, batches, seq_at(1))
    assert [file.record_count for file in written.files[IDS.name]] == [2]
    assert written.told == [(0, 0), (0, 1), (1, 0)]


def test_rows_of_a_large_trigger_are_made_some_at_a_time(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """With short VINs and long names they are forty times as large as what a worker was given."""
    vins = [f"V{number}" for number in range(25_000)]
    (batch,) = parsing.triggers(to_arrow([trigger(1, vins), trigger(2, vins)]), parsing.Limits(max_ids=25_000, max_data_bytes=10))
    made: list[int] = []

    def rows_of(accepted: pa.Table) -> pa.Table:
        rows = arrow_rows.ids_rows(accepted)
        made.append(rows.num_rows)
        return rows

    monkeypatch.setattr(worker_files, "PART_BYTES", 1)
    (file,) = work_of(catalog, [batch], rows_of=rows_of).files[IDS.name]
    assert max(made) == parsing.IDS_A_ROW
    found = pq.read_table(file.file_path.removeprefix("file://"))
    assert list(zip(found["seq"].to_pylist(), found["vin"].to_pylist(), strict=True)) == [
        (seq, vin) for seq in (seq_at(1), seq_at(2)) for vin in vins
    ]


def test_a_worker_that_fails_leaves_nothing(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches_of(trigger(1, ["V1"]), trigger(A_DAY_MS, ["V1"]))
        assert len(files_in(catalog)) == before + 2, "that each became a file"
        raise OSError("the store is away")

    before = len(files_in(catalog))
    monkeypatch.setattr(worker_files, "FILE_BYTES", 1)
    with pytest.raises(OSError, match="the store is away"):
        work_of(catalog, failing())
    assert len(files_in(catalog)) == before


@pytest.mark.slow
def test_a_run_over_many_files_and_days_writes_each_entry_once(spark_lake: SparkLake) -> None:
    for number in range(20):
        ms = number * A_DAY_MS // 4
        spark_lake.write(Stream.TRIGGER, [trigger(ms, ["V1", "V2"]), trigger(ms + 1, ["V1"])], node=number % 2)
    done = spark_lake.ingest()
    assert done.written[IDS.name] == 60
    found = spark_lake.rows(IDS, "seq", "vin")
    assert len(found) == len(set(found)) == 60
    assert len({task.file.partition[0] for task in spark_lake.catalog.load_table(IDS.identifier).scan().plan_files()}) == 6
