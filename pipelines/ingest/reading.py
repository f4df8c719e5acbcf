"""Reads, checks and parses files of the archive, in any process, and decides which messages are refused or set aside."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from manifold.archive.content import Unreadable
from manifold.archive.formats import decode
from manifold.archive.parsing import Limits, Parser
from manifold.archive.segment import Segment
from manifold.archive.store import Archive
from manifold.contracts.seq import COUNTER_BITS, MAX_NODE

KEPT_BYTES = 16 << 20  # of a file that is no segment; the rest stays in the archive


@dataclass(frozen=True, slots=True)
class File:
    """A segment as a worker sees it."""

    path: str
    skip: Sequence[int]  # seqs that another segment has brought
    own_seq: int  # quarantine key of the file itself
    began_at: datetime
    problem: str | None  # why it is not to be read
    node: int | None = None  # the recorder that gave all of its seqs, where that was relied on


@dataclass(frozen=True, slots=True)
class Source:
    """What to read: segments of one stream, the seqs in them that other segments have brought, and which are not to be read."""

    archive: Archive
    segments: Sequence[Segment]
    skips: Mapping[str, Sequence[int]]  # by path
    problems: Mapping[str, str]  # by path
    limits: Limits
    nodes: Mapping[str, int] = field(default_factory=dict)  # by path: the recorder that gave all of its seqs, as its name says
    aside: Mapping[int, str] = field(default_factory=dict)  # by seq: messages that are refused whatever they say, and why

    def file(self, segment: Segment) -> File:
        """The segment, with all that has to be known to read it."""
        skip = self.skips.get(segment.path, ())
        began_at = segment.began_at or segment.modified_at
        node = self.nodes.get(segment.path)
        return File(segment.path, skip, segment.own_seq, began_at, self.problems.get(segment.path), node)


def read_files(
    files: Iterable[File],
    aside: Mapping[int, str],
    archive: Archive,
    parser: Parser,
    limits: Limits,
    unreadable: pa.Schema | None,
) -> Iterator[pa.RecordBatch]:
    """The parsed messages; and, of schema `unreadable`, one refused row for each file that is no segment (None: none)."""
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
    """Hold a file to its name: by it, the file was not compared with what other recorders brought.

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
    """The row by which a file that is no segment goes to quarantine, under a seq of its own."""
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
    """The same messages; those with these seqs are refused, for the reasons given."""
    if not aside:
        return messages
    place = messages.schema.get_field_index("refused_because")
    refusals = zip(messages["seq"].to_pylist(), messages["refused_because"].to_pylist(), strict=True)
    return messages.set_column(
        place, messages.field(place), pa.array([aside.get(seq, why) for seq, why in refusals], pa.string())
    )
