"""Divides a long backlog into chunks, each a whole run with a bounded size, the oldest first. No Spark."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from manifold.archive.segment import Segment
from manifold.lake.grouping import grouped

OPENING = 64 << 10  # bytes that a segment counts for at least: to open it costs as much as to read so much


@dataclass(frozen=True, slots=True)
class Chunk:
    """The segments of one run."""

    run_id: str
    segments: list[Segment]
    is_last: bool


def in_chunks(segments: Iterable[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """The segments in their order, at most so many bytes at a time, but always one."""
    return grouped(segments, lambda segment: max(segment.size, OPENING), max_bytes)


def runs_of(segments: Iterable[Segment], max_bytes: int, run_id: str, *, again: bool = False) -> Iterator[Chunk]:
    """The chunks as runs. The last one is `run_id` itself, for which a caller waits; the others are named by their segments.

    So a run that was broken off goes on where it was, and finds what it had begun. `again`: `run_id` counts already and takes
    nothing more; then all are named so.
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
