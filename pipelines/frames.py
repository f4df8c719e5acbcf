"""Segments as DataFrames: each worker reads whole files, checks them, and parses what they hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pipelines.archive import Archive, Segment, Unreadable, decode
from pipelines.parsing import Limits, Parser

PARTITIONS_A_CORE = 4

_FILES = "path string, skip array<bigint>, own_seq bigint, began_at timestamp"
_File = tuple[str, list[int], int, datetime]
_Reader = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: segments of one stream, and the seqs in them that other segments have brought."""

    archive_url: str
    segments: Sequence[Segment]
    skips: Mapping[str, Sequence[int]]  # by path
    limits: Limits

    def parsed(self, spark: SparkSession, parser: Parser, schema: pa.Schema, *, with_unreadable: bool = True) -> DataFrame:
        """The parsed messages; and one refused row for each file that is no segment, with the file's bytes as its message."""
        read = _reader(self.archive_url, parser, self.limits, schema if with_unreadable else None)
        return self._files(spark).mapInArrow(read, from_arrow_schema(schema))

    def _files(self, spark: SparkSession) -> DataFrame:
        """One row a segment, the partitions about equal in bytes."""
        parts = _balanced(self.segments, spark.sparkContext.defaultParallelism * PARTITIONS_A_CORE)
        rows: list[list[_File]] = [[self._file(segment) for segment in part] for part in parts]
        rdd = spark.sparkContext.parallelize(rows, max(1, len(rows))).flatMap(_same)
        return spark.createDataFrame(rdd, _FILES)

    def _file(self, segment: Segment) -> _File:
        return segment.path, list(self.skips.get(segment.path, ())), segment.own_seq, segment.began_at or segment.modified_at


def _reader(archive_url: str, parser: Parser, limits: Limits, unreadable: pa.Schema | None) -> _Reader:
    def read(files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archive = Archive(archive_url)
        for batch in files:
            for file in batch.to_pylist():
                content = archive.read(file["path"])
                try:
                    messages = decode(content)
                except Unreadable as exc:
                    if unreadable is not None:
                        yield _refused_file(file, str(exc), content, unreadable)
                    continue
                yield from parser(_without(messages, file["skip"]), limits)

    return read


def _refused_file(file: dict[str, object], reason: str, content: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The row by which a file that is no segment goes to quarantine, under a seq of its own."""
    said = {"seq": file["own_seq"], "received_at": file["began_at"], "topic": file["path"], "reason": reason, "message": content}
    return pa.RecordBatch.from_pylist([said], schema=schema)


def _without(messages: pa.Table, seqs: Sequence[int]) -> pa.Table:
    if not seqs:
        return messages
    return messages.filter(pc.invert(pc.is_in(messages["seq"], pa.array(seqs, pa.int64()))))


def _same(rows: Iterable[_File]) -> Iterable[_File]:
    return rows


def _balanced(segments: Sequence[Segment], parts: int) -> list[list[Segment]]:
    """Into at most `parts` groups: the largest first, each to the group that is the smallest so far."""
    groups: list[list[Segment]] = [[] for _ in range(min(parts, len(segments)))]
    sizes = [0] * len(groups)
    for segment in sorted(segments, key=lambda s: (-s.size, s.path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(segment)
        sizes[smallest] += segment.size + 1
    return groups
