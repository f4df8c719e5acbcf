"""Divides a backlog into chunks of bounded size, oldest first; each chunk is a run of its own. No Spark."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from manifold.archive.segment import Segment
from manifold.lake.grouping import grouped

OPEN_COST_BYTES = 64 << 10  # minimum size counted for a segment, in bytes: opening one costs as much as reading this many


@dataclass(frozen=True, slots=True)
class Chunk:
    """The segments of one run."""

    run_id: str
    segments: list[Segment]
    is_last: bool


def in_chunks(segments: Iterable[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """Group the segments, in order, into lists of at most `max_bytes` with at least one segment each."""
    return grouped(segments, lambda segment: max(segment.size, OPEN_COST_BYTES), max_bytes)


def runs_of(segments: Iterable[Segment], max_bytes: int, run_id: str, *, again: bool = False) -> Iterator[Chunk]:
    """Yield the chunks as runs. The last is `run_id` itself, which the caller awaits; other ids derive from the segments.

    So an interrupted run resumes where it stopped, and finds the chunk that it had begun. With `again`, `run_id` is already
    committed and takes nothing more, so all chunks get derived ids.
    """
    before: list[Segment] | None = None
    for chunk in in_chunks(segments, max_bytes):
        if before is not None:
            yield Chunk(_named(run_id, before), before, is_last=False)
        before = chunk
    if before is not None:
        yield Chunk(_named(run_id, before) if again else run_id, before, is_last=not again)


def _named(run_id: str, segments: list[Segment]) -> str:
    paths = "\n".join(segment.path for segment in segments)
    return f"{run_id}_{hashlib.sha256(paths.encode()).hexdigest()[:8]}"
