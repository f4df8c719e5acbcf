"""Data files that Spark's workers write themselves: each reads its part of the archive once, and writes with PyArrow.

Spark distributes the work and collects the names of the files; the driver commits them. So a message is parsed once for all its
tables, and its rows do not go through the JVM, which takes ten times as long from Arrow to Parquet. A worker that fails removes
the files that it completed. Files that it was writing, or that others had written by then, are orphans; garbage collection
removes them.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyspark.core.broadcast import Broadcast

from manifold.archive.parsing import Parser
from manifold.contracts.tables import Table
from manifold.lake.data_files import DataFiles
from pipelines.ingest.arrow_rows import parted
from pipelines.ingest.attempt import LEVEL, Attempt
from pipelines.ingest.frames import Reader, spread
from pipelines.ingest.reading import Source

FILE_BYTES = 64 << 20  # of one table's rows in a worker's memory, which then become a file
# Of parsed messages whose rows are made at once: each VIN of a trigger is a row with the trigger's names, forty times its bytes.
PART_BYTES = 1 << 20

Told = TypeVar("Told")
Rows = Callable[[pa.Table], pa.Table]
_Write = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Work(Generic[Told]):
    """What workers make of the messages of a stream."""

    parser: Parser
    schema: pa.Schema  # of what the parser gives
    tables: Sequence[tuple[Table, Rows]]  # and how rows of it are made of parsed messages that were accepted
    tell: Callable[[pa.Table, pa.Table], Told]  # about some messages: those that were refused, and those that were accepted


@dataclass(frozen=True, slots=True)
class Written(Generic[Told]):
    """The files that workers have written, and what they tell of the messages."""

    files: dict[str, list[DataFile]] = field(default_factory=dict)  # by table
    told: list[Told] = field(default_factory=list)


def write_files(run: Attempt, source: Source, work: Work[Told], *, but: Sequence[int] = ()) -> Written[Told]:
    """The files of all that is accepted, but of messages with the seqs `but`. No snapshot knows them yet."""
    places, read = spread(source, run.spark, work.parser, work.schema)
    tables = [DataFiles.of(run.catalog.load_table(table.identifier), level=LEVEL) for table, _ in work.tables]
    left_out = run.spark.sparkContext.broadcast(pa.array(but, pa.int64()))
    rows = places.mapInArrow(_writer(read, work, tables, left_out), "written binary").collect()
    written: Written[Told] = Written({table.name: [] for table, _ in work.tables})
    for part in (pickle.loads(row["written"]) for row in rows):  # noqa: S301  # of this code's own workers
        written.told.extend(part.told)
        for name, files in part.files.items():
            written.files[name] += files
    return written


def _writer(read: Reader, work: Work[Told], tables: Sequence[DataFiles], left_out: "Broadcast[pa.Array]") -> _Write:
    def write(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        piles = [_Pile(files) for files in tables]
        try:
            written = _written(read(places), work, piles, left_out.value)
        except BaseException:  # Spark may try it again, with other files
            for pile in piles:
                pile.remove()
            raise
        yield pa.RecordBatch.from_pylist([{"written": pickle.dumps(written)}])

    return write


def _written(batches: Iterable[pa.RecordBatch], work: Work[Told], piles: "Sequence[_Pile]", left_out: pa.Array) -> Written[Told]:
    told = []
    for batch in batches:
        refused, accepted = parted(pa.Table.from_batches([batch]))
        if len(left_out):
            accepted = accepted.filter(pc.invert(pc.is_in(accepted["seq"], left_out)))
        told.append(work.tell(refused, accepted))
        for part in _parts(accepted):
            for pile, (_, rows_of) in zip(piles, work.tables, strict=True):
                pile.add(rows_of(part))
    return Written({table.name: pile.close() for pile, (table, _) in zip(piles, work.tables, strict=True)}, told)


def _parts(messages: pa.Table) -> Iterator[pa.Table]:
    """All of them, about `PART_BYTES` at a time."""
    rows = max(1, messages.num_rows * PART_BYTES // max(messages.nbytes, 1))
    for first in range(0, messages.num_rows, rows):
        yield messages.slice(first, rows)


class _Pile:
    """Rows of a table in memory, until they are enough for a file."""

    def __init__(self, target: DataFiles) -> None:
        self._target = target
        self._rows: list[pa.Table] = []
        self._size = 0
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Some more, which may become a file with those that are there."""
        self._rows.append(rows)
        self._size += rows.nbytes
        if self._size >= FILE_BYTES:
            self._write()

    def close(self) -> list[DataFile]:
        """All files, the rest in the last one."""
        if self._rows:
            self._write()
        return self._files

    def remove(self) -> None:
        """Take back all of it."""
        self._target.remove(self._files)

    def _write(self) -> None:
        self._files += self._target.write(pa.concat_tables(self._rows))
        self._rows, self._size = [], 0
