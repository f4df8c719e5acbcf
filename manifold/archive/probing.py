"""Probes segments: the number of messages, the range of seqs, and whether the file is a valid segment.

Most segments are not read as a whole for this.
"""

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

MIN_PARQUET_BYTES = 12  # every Parquet file has at least two magic numbers and the length of its footer


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of probing a segment."""

    messages: int = 0  # number of messages
    first_seq: int | None = None  # lowest seq; None if there are no messages
    last_seq: int | None = None  # highest seq; None if there are no messages
    problem: str | None = None  # why the file is not a valid segment; None if it is valid
    derived: bool = False  # whether the seqs were derived from the path, because the file has none


def probe(archive: Archive, segments: Iterable[Segment]) -> list[Probe]:
    """Probe the segments concurrently; return the results in the order of the segments."""
    with ThreadPoolExecutor(MAX_CONCURRENT_READS, "probe") as pool:
        return list(pool.map(lambda segment: _probe(archive, segment), segments))


def seqs_of(archive: Archive, path: str) -> Sequence[int]:
    """The seqs in the file at `path`, in the order of the file.

    Raises:
        Unreadable: the file is not a valid segment.
    """
    if is_parquet(path):
        with archive.open(path) as file:
            try:
                column = pq.read_table(file, columns=["seq"])["seq"]
                return column.cast(pa.int64()).to_numpy().tolist()  # type: ignore[no-any-return]
            except Exception:  # noqa: BLE001, S110
                pass  # no column `seq`, or an invalid file: decoding the whole file below derives the seqs, or raises
    return list(map(int, decode(path, archive.read(path)).seqs))


def _probe(archive: Archive, segment: Segment) -> Probe:
    """Probe a segment by its Parquet footer and its column `seq`. If it lacks them, probe the whole segment."""
    if not is_parquet(segment.path):
        return _probe_whole(archive, segment)
    if segment.size < MIN_PARQUET_BYTES:
        return Probe(problem=f"{segment.size} bytes are not a Parquet file")
    result: Probe | None = None
    error: Exception | None = None
    with archive.open(segment.path) as file:
        try:
            result = _probe_seq_column(file)
        except Unreadable as exc:
            return Probe(problem=str(exc))
        except Exception as exc:  # noqa: BLE001  # for an invalid file, the library raises various errors
            error = exc
    if result is not None:
        return result
    whole = _probe_whole(archive, segment)
    if error is not None and whole.problem is None:
        raise error  # the segment is valid, so the storage has failed
    return whole


def _probe_seq_column(file: pa.NativeFile) -> Probe | None:
    """Probe a Parquet file by its footer and its column `seq`; None if it lacks this column.

    Raises:
        Unreadable: the file is not a valid segment.
        Exception: the file is not a Parquet file, or the storage failed.
    """
    parquet = pq.ParquetFile(file)
    schema = parquet.metadata.schema.to_arrow_schema()
    rows = parquet.metadata.num_rows
    check_columns(schema)
    if rows == 0:
        return Probe()
    if "seq" not in schema.names:
        return None
    first_seq, last_seq = _seq_range(parquet)
    return Probe(rows, first_seq, last_seq)


def _probe_whole(archive: Archive, segment: Segment) -> Probe:
    """Probe a segment by decoding all of it."""
    try:
        content = decode(segment.path, archive.read(segment.path))
    except Unreadable as exc:
        return Probe(problem=str(exc))
    rows, seqs = content.messages.num_rows, content.seqs
    if not len(seqs):
        return Probe(rows, derived=content.derived)
    return Probe(rows, int(seqs.min()), int(seqs.max()), derived=content.derived)


def _seq_range(parquet: pq.ParquetFile) -> tuple[int, int]:
    """The lowest and the highest seq of a file that has rows, from its column `seq`.

    The statistics in the footer could be read faster, but if they are damaged, PyArrow crashes the process.
    """
    rows = 0
    bounds = []  # of each batch
    for batch in parquet.iter_batches(columns=["seq"]):
        seqs = batch.column(0)
        if seqs.null_count:
            raise Unreadable("rows without seq")
        rows += batch.num_rows
        bounds.append(pc.min_max(seqs.cast(pa.int64())).as_py())
    if rows != parquet.metadata.num_rows:
        raise Unreadable(f"its footer counts {parquet.metadata.num_rows} rows, and it has {rows}")
    first = min(bound["min"] for bound in bounds)
    last = max(bound["max"] for bound in bounds)
    if first < 0:
        raise Unreadable("a seq is negative")
    return first, last
