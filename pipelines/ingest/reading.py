"""Segments as DataFrames: each Spark worker reads, checks and parses whole files, and refuses messages or sets them aside."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.parsing import Limits, Parser
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import COUNTER_BITS, MAX_NODE
from pipelines.spark.parallelism import parallelism

if TYPE_CHECKING:  # workers import this module, and none of these
    from pipelines.ingest.attempt import Attempt
    from pipelines.ingest.planning import Plan

PARTITIONS_PER_CORE = 4
PART_BYTES = 1 << 20  # of the archive, per part: a part becomes a file in each table, and small files slow readers down
KEPT_BYTES = 16 << 20  # kept of a file that is not a valid segment; the archive has all of it

Reader = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class File:
    """A segment as a worker sees it."""

    path: str
    skip: Sequence[int]  # already brought by another segment
    own_seq: int  # quarantine key of the file itself
    began_at: datetime
    problem: str | None  # why it must not be read
    node: int | None = None  # the recorder that its name claims for all of its seqs, to be verified


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: segments of one stream, the seqs in them to skip, and files that must not be read."""

    archive: Archive
    segments: Sequence[Segment]
    skips: Mapping[str, Sequence[int]]  # by path
    problems: Mapping[str, str]  # by path
    limits: Limits
    nodes: Mapping[str, int] = field(default_factory=dict)  # by path: the recorder that the file name claims for all seqs
    aside: Mapping[int, str] = field(default_factory=dict)  # by seq: why the message is refused, whatever its content

    def file(self, segment: Segment) -> File:
        """The segment, with everything needed to read it."""
        skip = self.skips.get(segment.path, ())
        began_at = segment.began_at or segment.modified_at
        node = self.nodes.get(segment.path)
        return File(segment.path, skip, segment.own_seq, began_at, self.problems.get(segment.path), node)


def source_of(attempt: "Attempt", plan: "Plan", stream: Stream) -> Source:
    """The source to read for one stream."""
    limits = Limits(attempt.settings.max_ids, attempt.settings.max_data_bytes, attempt.settings.inline_encoding)
    archive = Archive(attempt.settings.archive, attempt.settings.s3)
    return Source(archive, plan.of(stream), plan.skips, plan.problems, limits, plan.nodes, plan.aside)


def read_and_parse(
    source: Source, spark: SparkSession, parser: Parser, schema: pa.Schema, *, with_unreadable: bool = True
) -> DataFrame:
    """The parsed messages, and one refused row per unreadable file with the file's bytes as its message."""
    wanted = max(1, sum(segment.size for segment in source.segments) // PART_BYTES)
    if wanted > PARTITIONS_PER_CORE:  # fewer always fit, and to ask Spark may take a query
        wanted = min(wanted, parallelism(spark) * PARTITIONS_PER_CORE)
    parts = _balanced(source.segments, wanted)
    files = [[source.file(segment) for segment in part] for part in parts]
    read = _reader(files, dict(source.aside), source.archive, parser, source.limits, schema if with_unreadable else None)
    # A range of part numbers, one per partition, needs no Python worker to create and no shuffle to distribute.
    return spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, from_arrow_schema(schema))


def _reader(
    parts: Sequence[Sequence[File]],
    aside: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable: pa.Schema | None,
) -> Reader:
    """The function that Spark pickles, lists included; PySpark broadcasts it by itself once it exceeds 1 MiB."""

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for part in batch["id"].to_pylist():
                yield from read_files(parts[part], aside, archive, parser, limits, unreadable)

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


def read_files(
    files: Iterable[File],
    aside: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable: pa.Schema | None,
) -> Iterator[pa.RecordBatch]:
    """The parsed messages, and one refused row of schema `unreadable` per unreadable file (None: no such rows)."""
    for file in files:
        content = archive.read(file.path)
        try:
            if file.problem is not None:
                raise Unreadable(file.problem)
            messages = decode(file.path, content).messages
            _require_node(messages, file.node)
        except Unreadable as exc:
            if unreadable is not None:
                yield _refused_file(file, str(exc), content, unreadable)
            continue
        yield from parser(set_aside(_without(messages, file.skip), aside), limits)


def _require_node(messages: pa.Table, node: int | None) -> None:
    """Verify that the seqs are those of the recorder named by the file, which was not compared with other recorders' files.

    Raises:
        Unreadable: it has seqs of another recorder.
    """
    if node is None:
        return
    seqs = messages["seq"].to_numpy()
    others = np.unique((seqs[seqs >= 0] >> COUNTER_BITS) & MAX_NODE)
    if (others != node).any():
        other = others[others != node][0]
        raise Unreadable(
            f"its name says that recorder {node} wrote it, and it has seqs of recorder {other}; give it another name"
        )


def _refused_file(file: File, reason: str, content: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The quarantine row of a file that is not a valid segment, under a seq of its own."""
    if len(content) > KEPT_BYTES:
        reason += f"; of its {len(content)} bytes the first {KEPT_BYTES} are kept here, all of them in the archive"
    kept = content[:KEPT_BYTES]
    refusal = {"seq": file.own_seq, "received_at": file.began_at, "topic": file.path, "reason": reason, "message": kept}
    return pa.RecordBatch.from_pylist([refusal], schema=schema)


def _without(messages: pa.Table, seqs: Sequence[int]) -> pa.Table:
    if not seqs:
        return messages
    return messages.filter(pc.invert(pc.is_in(messages["seq"], pa.array(seqs, pa.int64()))))


def set_aside(messages: pa.Table, aside: Mapping[int, str]) -> pa.Table:
    """Refuse the messages with these seqs, for the reasons given; the others are unchanged."""
    if not aside:
        return messages
    place = messages.schema.get_field_index("refused_because")
    refusals = zip(messages["seq"].to_pylist(), messages["refused_because"].to_pylist(), strict=True)
    return messages.set_column(
        place, messages.field(place), pa.array([aside.get(seq, why) for seq, why in refusals], pa.string())
    )
