"""Probes a segment without reading all of it: number of messages, range of seqs, and whether the file is a segment."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from manifold.archive.content import Unreadable
from manifold.archive.formats import check_columns, decode
from manifold.archive.segment import Segment
from manifold.archive.store import MAX_CONCURRENT_READS, Archive
from manifold.contracts.archive_files import is_parquet

SMALLEST_FILE = 12  # bytes: two magic words and the length of the footer


@dataclass(frozen=True, slots=True)
class Probe:
    """The content of a segment, read from its footer; `problem` is set if the file is not a segment."""

    messages: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    problem: str | None = None
    derived: bool = False  # its seqs are derived from its path


def probe(archive: Archive, segments: Iterable[Segment]) -> list[Probe]:
    """Probe each segment, in order; reads little more than the footers."""
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "probe") as pool:
        return list(pool.map(lambda segment: _probe(archive, segment), segments))


def seqs_of(archive: Archive, path: str) -> Sequence[int]:
    """Read the seqs of one segment, in its order.

    Raises:
        Unreadable: it is not a segment.
    """
    if is_parquet(path):
        with archive.open(path) as file:
            try:
                return pq.read_table(file, columns=["seq"])["seq"].cast(pa.int64()).to_numpy().tolist()  # type: ignore[no-any-return]
            except (pa.ArrowException, OSError, KeyError):
                pass  # no such column, or broken: decoding the whole file decides
    return list(map(int, decode(path, archive.read(path)).seqs))


def _probe(archive: Archive, segment: Segment) -> Probe:
    if not is_parquet(segment.path):
        return _probe_whole(archive, segment)
    if segment.size < SMALLEST_FILE:
        return Probe(problem=f"{segment.size} bytes are no Parquet file")
    with archive.open(segment.path) as file:
        try:
            metadata = pq.ParquetFile(file).metadata
            schema = metadata.schema.to_arrow_schema()
            check_columns(schema)
            if metadata.num_rows == 0:
                return Probe()
            if "seq" in schema.names:
                return Probe(metadata.num_rows, *_seq_range(metadata, file))
        except Unreadable as exc:
            return Probe(problem=str(exc))
        except (pa.ArrowException, OSError) as exc:
            reason = exc
        else:
            return _probe_whole(archive, segment)
    probe = _probe_whole(archive, segment)
    if probe.problem is None:  # intermittent storage failures must not make a segment look broken
        raise reason
    return probe


def _probe_whole(archive: Archive, segment: Segment) -> Probe:
    """Probe a segment by its whole content, if it has no usable footer."""
    try:
        content = decode(segment.path, archive.read(segment.path))
    except Unreadable as exc:
        return Probe(problem=str(exc))
    seqs = content.seqs
    first, last = (int(seqs.min()), int(seqs.max())) if len(seqs) else (None, None)
    return Probe(content.messages.num_rows, first, last, derived=content.derived)


def _seq_range(metadata: pq.FileMetaData, file: pa.NativeFile) -> tuple[int, int]:
    """Smallest and greatest seq: from the footer's statistics, or from the column if the writer omitted them."""
    column = [metadata.schema.column(place).path for place in range(metadata.num_columns)].index("seq")
    stats = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
    if all(s is not None and s.has_min_max for s in stats):
        return min(int(s.min) for s in stats), max(int(s.max) for s in stats)
    seqs = pq.read_table(file, columns=["seq"])["seq"].cast(pa.int64()).drop_null().to_numpy()
    if len(seqs) == 0:
        raise Unreadable("rows without seq")
    return int(seqs.min()), int(seqs.max())
