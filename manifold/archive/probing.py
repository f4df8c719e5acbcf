"""Probes a segment without reading all of it: number of messages, range of seqs, and whether the file is a segment."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifold.archive.content import Unreadable
from manifold.archive.formats import check_columns, decode
from manifold.archive.segment import Segment
from manifold.archive.store import MAX_CONCURRENT_READS, Archive
from manifold.contracts.archive_files import is_parquet

SMALLEST_FILE = 12  # bytes: two magic words and the length of the footer


@dataclass(frozen=True, slots=True)
class Probe:
    """The number of messages of a segment and the range of their seqs; `problem` where the file is not a segment."""

    messages: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    problem: str | None = None
    derived: bool = False  # its seqs are derived from its path


def probe(archive: Archive, segments: Iterable[Segment]) -> list[Probe]:
    """The probe of each segment, in their order; reads little more than footers and seqs."""
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
            except Exception:  # noqa: BLE001, S110  # without such a column, or broken: reading the whole file tells
                pass
    return list(map(int, decode(path, archive.read(path)).seqs))


def _probe(archive: Archive, segment: Segment) -> Probe:
    """Read rows and seqs of a segment from its Parquet footer if it has them there; otherwise from the whole segment."""
    if not is_parquet(segment.path):
        return _probe_whole(archive, segment)
    if segment.size < SMALLEST_FILE:
        return Probe(problem=f"{segment.size} bytes are not a Parquet file")
    with archive.open(segment.path) as file:
        try:
            parquet = pq.ParquetFile(file)
            schema, rows = parquet.metadata.schema.to_arrow_schema(), parquet.metadata.num_rows
            check_columns(schema)
            if rows == 0:
                return Probe()
            if "seq" in schema.names:
                return Probe(rows, *_seq_range(parquet))
        except Unreadable as exc:
            return Probe(problem=str(exc))
        except Exception as exc:  # noqa: BLE001  # of whatever the library met in what somebody sent
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


def _seq_range(parquet: pq.ParquetFile) -> tuple[int, int]:
    """Smallest and greatest seq of a file that has rows, from the column.

    The footer's statistics would cost less, but PyArrow crashes the process if the footer is damaged at that point.
    """
    spans, rows = [], 0
    for batch in parquet.iter_batches(columns=["seq"]):
        if batch.column(0).null_count:
            raise Unreadable("rows without seq")
        rows += batch.num_rows
        spans.append(pc.min_max(batch.column(0).cast(pa.int64())).as_py())
    if rows != parquet.metadata.num_rows:
        raise Unreadable(f"its footer counts {parquet.metadata.num_rows} rows, and it has {rows}")
    first, last = min(span["min"] for span in spans), max(span["max"] for span in spans)
    if first < 0:
        raise Unreadable("a seq is negative")
    return first, last
