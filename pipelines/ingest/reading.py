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

KEPT_BYTES = 16 << 20  # kept of a file that is not a valid segment; the archive has all of it


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
