"""Reads segments into DataFrames: each Spark worker reads, checks and parses whole files, and refuses messages and files."""

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

if TYPE_CHECKING:  # Spark workers import this module, and must not import these two
    from pipelines.ingest.attempt import Attempt
    from pipelines.ingest.planning import Plan

PARTITIONS_PER_CORE = 4
# Segments are read in parts of about this many bytes, one Spark partition each. A part becomes a file in each table, and small
# files slow readers down.
PART_BYTES = 1 << 20
MAX_QUARANTINED_FILE_BYTES = 16 << 20  # of a file that is not a valid segment, quarantine keeps only the beginning

Reader = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class File:
    """A segment to read, as it is sent to a Spark worker."""

    path: str
    skip: Sequence[int]  # seqs to skip (`Plan.skips`)
    own_seq: int  # seq of the file's row in quarantine, if the file is refused
    began_at: datetime
    problem: str | None  # why the file is refused without being read; None: read it
    node: int | None = None  # number of the recorder that, according to the name, assigned all seqs; to be verified


@dataclass(frozen=True, slots=True)
class Source:
    """The segments of one stream to read, with the messages to skip and the messages and files to refuse."""

    archive: Archive
    segments: Sequence[Segment]
    skips: Mapping[str, Sequence[int]]  # path → seqs to skip
    problems: Mapping[str, str]  # path → why the whole file is refused
    limits: Limits
    nodes: Mapping[str, int] = field(default_factory=dict)  # path → recorder that, according to the name, assigned all seqs
    offenders: Mapping[int, str] = field(default_factory=dict)  # seq → why the message is refused, whatever its content

    def file(self, segment: Segment) -> File:
        """The segment with everything that a worker needs to read it."""
        return File(
            path=segment.path,
            skip=self.skips.get(segment.path, ()),
            own_seq=segment.quarantine_seq,
            began_at=segment.began_at or segment.modified_at,
            problem=self.problems.get(segment.path),
            node=self.nodes.get(segment.path),
        )


def source_of(attempt: "Attempt", plan: "Plan", stream: Stream) -> Source:
    """The planned segments of one stream."""
    limits = Limits.of(attempt.settings)
    archive = Archive(attempt.settings.archive, attempt.settings.s3)
    return Source(archive, plan.segments_of(stream), plan.skips, plan.problems, limits, plan.nodes, plan.offenders)


def read_and_parse(
    source: Source, spark: SparkSession, parser: Parser, schema: pa.Schema, *, with_unreadable: bool = True
) -> DataFrame:
    """The rows of the parsed messages.

    With `with_unreadable`, each unreadable file has one row too: a refused row with the file's bytes as its message.
    """
    part_count = max(1, sum(segment.size for segment in source.segments) // PART_BYTES)
    if part_count > PARTITIONS_PER_CORE:  # else the limit cannot matter, and `parallelism` may take a query
        part_count = min(part_count, parallelism(spark) * PARTITIONS_PER_CORE)
    parts = [[source.file(segment) for segment in group] for group in _balanced(source.segments, part_count)]
    unreadable_schema = schema if with_unreadable else None
    read = _reader(parts, dict(source.offenders), source.archive, parser, source.limits, unreadable_schema)
    # A range has one part number per partition. Spark creates it without a Python worker, and distributes it without a shuffle.
    part_numbers = spark.range(0, len(parts), step=1, numPartitions=max(1, len(parts)))
    return part_numbers.mapInArrow(read, from_arrow_schema(schema))


def _reader(
    parts: Sequence[Sequence[File]],
    offenders: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable_schema: pa.Schema | None,
) -> Reader:
    """A function for Spark workers: it gets batches of part numbers, in the column `id`, and yields the rows of these parts.

    Spark pickles this function together with `parts` and `offenders`. Above 1 MiB, PySpark broadcasts the pickle automatically.
    """

    def read(part_numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in part_numbers:
            for part_number in batch["id"].to_pylist():
                yield from read_files(parts[part_number], offenders, archive, parser, limits, unreadable_schema)

    return read


def _balanced(segments: Sequence[Segment], max_groups: int) -> list[list[Segment]]:
    """Divide the segments into at most `max_groups` groups of similar size.

    Segments are assigned in order of decreasing size, each to the group that is smallest so far.
    """
    groups: list[list[Segment]] = [[] for _ in range(min(max_groups, len(segments)))]
    sizes = [0] * len(groups)
    for segment in sorted(segments, key=lambda segment: (-segment.size, segment.path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(segment)
        sizes[smallest] += segment.size + 1  # plus 1, so that empty segments are distributed too
    return groups


def read_files(
    files: Iterable[File],
    offenders: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable_schema: pa.Schema | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the parsed messages, and with `unreadable_schema` one refused row of that schema per unreadable file.

    Without `unreadable_schema`, unreadable files are left out, because another read of the same files refuses them.
    """
    for file in files:
        content = archive.read(file.path)
        try:
            messages = _messages_of(file, content)
        except Unreadable as exc:
            if unreadable_schema is not None:
                yield _refused_file(file, str(exc), content, unreadable_schema)
            continue
        new_messages = _without_seqs(messages, file.skip)
        yield from parser(refuse_offenders(new_messages, offenders), limits)


def _messages_of(file: File, content: bytes) -> pa.Table:
    """All messages of the file with this content.

    Raises:
        Unreadable: the plan refuses the file, it is not a valid segment, or it has seqs of a recorder other than its name says.
    """
    if file.problem is not None:
        raise Unreadable(file.problem)
    messages = decode(file.path, content).messages
    _require_node(messages, file.node)
    return messages


def _require_node(messages: pa.Table, node: int | None) -> None:
    """Verify that recorder `node`, which the file name states, assigned all seqs of the file.

    The check is necessary because a file whose name states a recorder was not compared with files of other recorders.

    Raises:
        Unreadable: the file has seqs of another recorder.
    """
    if node is None:
        return
    seqs = messages["seq"].to_numpy()
    # A line that is not a message has a negative seq, which no recorder assigned.
    nodes = np.unique((seqs[seqs >= 0] >> COUNTER_BITS) & MAX_NODE)  # as `contracts.seq.node_of`, for all seqs at once
    other_nodes = nodes[nodes != node]
    if len(other_nodes):
        raise Unreadable(
            f"its name says that recorder {node} wrote it, and it has seqs of recorder {other_nodes[0]}; give it another name"
        )


def _refused_file(file: File, reason: str, content: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """The row, with the columns of `schema`, that refuses a whole file for this reason."""
    kept = content[:MAX_QUARANTINED_FILE_BYTES]
    if len(kept) < len(content):
        reason += f"; of its {len(content)} bytes the first {len(kept)} are kept here, all of them in the archive"
    refusal = {"seq": file.own_seq, "received_at": file.began_at, "topic": file.path, "reason": reason, "message": kept}
    return pa.RecordBatch.from_pylist([refusal], schema=schema)


def _without_seqs(messages: pa.Table, seqs: Sequence[int]) -> pa.Table:
    """The messages except those with these seqs."""
    if not seqs:
        return messages
    return messages.filter(pc.invert(pc.is_in(messages["seq"], pa.array(seqs, pa.int64()))))


def refuse_offenders(messages: pa.Table, offenders: Mapping[int, str]) -> pa.Table:
    """Mark the offending messages (seq → reason) as refused, so that parsers refuse them; all other messages are unchanged."""
    if not offenders:
        return messages
    seqs = messages["seq"].to_pylist()
    reasons = messages["refused_because"].to_pylist()
    new_reasons = [offenders.get(seq, reason) for seq, reason in zip(seqs, reasons, strict=True)]
    index = messages.schema.get_field_index("refused_because")
    return messages.set_column(index, messages.field(index), pa.array(new_reasons, pa.string()))
