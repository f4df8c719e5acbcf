"""Segments as DataFrames: each Spark worker reads, checks and parses whole files."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from manifold.archive.parsing import Limits, Parser
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from pipelines.ingest.reading import File, Source, read_files
from pipelines.spark.parallelism import parallelism

PARTITIONS_PER_CORE = 4
PART_BYTES = 1 << 20  # of the archive, per part: a part becomes a file in each table, and small files slow readers down

Reader = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def parsed(source: Source, spark: SparkSession, parser: Parser, schema: pa.Schema, *, with_unreadable: bool = True) -> DataFrame:
    """The parsed messages, and one refused row per unreadable file with the file's bytes as its message."""
    places, read = spread(source, spark, parser, schema if with_unreadable else None)
    return places.mapInArrow(read, from_arrow_schema(schema))


def spread(source: Source, spark: SparkSession, parser: Parser, unreadable: pa.Schema | None) -> tuple[DataFrame, Reader]:
    """A DataFrame of part numbers, one per partition, and the function that reads and parses those parts on a worker.

    `unreadable` is as in `read_files`.
    """
    wanted = max(1, sum(segment.size for segment in source.segments) // PART_BYTES)
    parts = _balanced(source.segments, min(wanted, parallelism(spark) * PARTITIONS_PER_CORE))
    files = [[source.file(segment) for segment in part] for part in parts]
    # A range needs no Python worker to create and no shuffle to distribute.
    places = spark.range(0, len(parts), 1, max(1, len(parts)))
    return places, _reader(files, dict(source.aside), source.archive, parser, source.limits, unreadable)


def _reader(
    parts: Sequence[Sequence[File]],
    aside: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable: pa.Schema | None,
) -> Reader:
    """The function that Spark pickles, lists included; PySpark broadcasts it by itself once it exceeds 1 MiB."""

    def read(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files = (file for batch in places for place in batch["id"].to_pylist() for file in parts[place])
        yield from read_files(files, aside, archive, parser, limits, unreadable)

    return read


def _balanced(segments: Sequence[Segment], parts: int) -> list[list[Segment]]:
    """Split into at most `parts` groups: the largest segment first, each to the smallest group so far."""
    groups: list[list[Segment]] = [[] for _ in range(min(parts, len(segments)))]
    sizes = [0] * len(groups)
    for segment in sorted(segments, key=lambda s: (-s.size, s.path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(segment)
        sizes[smallest] += segment.size + 1
    return groups
