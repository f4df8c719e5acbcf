"""Decodes the bytes of an archive file into messages with the envelope's columns. See `docs/guides/archives.md` for the formats.

Needs no Spark, so that workers and commands can use it too.
"""

from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from manifold.archive.content import DecodedFile, Integers, Unreadable, derived_seqs, one_line
from manifold.archive.lines import from_lines
from manifold.contracts.archive_files import is_parquet
from manifold.contracts.envelope import SEGMENT_SCHEMA
from manifold.contracts.seq import EPOCH_MS, TIME_SHIFT

REQUIRED = ("topic", "payload")
ENDS = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def decode(path: str, content: bytes) -> DecodedFile:
    """Decode the file at `path` (below the archive's root); each seq occurs once.

    Raises:
        Unreadable: these bytes are not a segment.
    """
    try:
        found = _from_parquet(path, content) if is_parquet(path) else from_lines(path, content)
    except (Unreadable, MemoryError):  # with more memory, it may be readable
        raise
    except Exception as exc:  # any library may fail on foreign bytes
        raise Unreadable(f"reading it failed ({type(exc).__name__}: {one_line(exc)})") from exc
    seqs = found.messages["seq"].to_numpy()
    if len(seqs) < 2 or bool((np.diff(seqs) > 0).all()):
        return found
    _, firsts = np.unique(seqs, return_index=True)
    return DecodedFile(found.messages.take(pa.array(np.sort(firsts))), found.derived) if len(firsts) < len(seqs) else found


def check_columns(schema: pa.Schema) -> None:
    """Check that a Parquet file has each column once, all that cannot be derived, and no seq that has lost digits.

    Raises:
        Unreadable: a column is missing, or of the wrong type.
    """
    if doubled := [name for name in SEGMENT_SCHEMA.names if schema.names.count(name) > 1]:
        raise Unreadable(f"columns {', '.join(doubled)} occur more than once")
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise Unreadable(f"columns {', '.join(missing)} are missing")
    if "seq" not in schema.names and "received_at" not in schema.names:
        raise Unreadable("columns seq and received_at are missing; one of them must be there")
    seq = schema.field("seq").type if "seq" in schema.names else pa.int64()
    if not pa.types.is_integer(seq):  # 63 bits do not fit into a float: neighbours would become equal
        raise Unreadable(f"column seq is of type {seq}; write it as a 64-bit integer (BIGINT)")


@cache  # not at import time: the first conversion of a Python value loads pandas
def _ends_of_time() -> tuple[pa.Scalar, pa.Scalar]:
    """The first and the last instant that Python can represent; an Arrow column can hold others."""
    first, last = (pa.scalar(end, pa.timestamp("us", tz="UTC")) for end in ENDS)
    return first, last


def _from_parquet(path: str, content: bytes) -> DecodedFile:
    """Decode a Parquet segment; raises Unreadable if any of it is not of the envelope's form."""
    try:
        # read_table would load pyarrow.dataset and pandas: half a second. A thread of Arrow's that still holds `content` when
        # Python ends would abort the process (apache/arrow#34314).
        table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole Parquet file ({one_line(exc)})") from exc
    check_columns(table.schema)
    try:
        columns = {field.name: _column(table, field) for field in SEGMENT_SCHEMA}
        columns["stream"] = pa.repeat(path.split("/")[0], table.num_rows)  # that of its folder, whatever a column says
        pa.table(columns).validate(full=True)  # otherwise text that is not UTF-8 would crash a later reader
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"columns are not of the envelope's types ({one_line(exc)})") from exc
    derived = "seq" not in table.schema.names
    source = "received_at" if derived else "seq"  # the other can be computed from it
    if holes := [name for name in (*REQUIRED, source) if columns[name].null_count]:
        raise Unreadable(f"rows without {', '.join(holes)}")
    if derived:
        columns["seq"] = pa.array(derived_seqs(path, _milliseconds(columns["received_at"])))
    elif table.num_rows and pc.min(columns["seq"]).as_py() < 0:
        raise Unreadable("a seq is negative")
    if columns["received_at"].null_count:
        columns["received_at"] = _filled_received_at(columns)
    instants, (first, last) = columns["received_at"], _ends_of_time()
    if pc.any(pc.or_(pc.less(instants, first), pc.greater(instants, last))).as_py():
        raise Unreadable("a received_at lies in no year from 1 to 9999")
    return DecodedFile(pa.table(columns), derived)


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    if field.name not in table.schema.names:
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name]
    given = column.type
    try:
        if pa.types.is_timestamp(field.type) and pa.types.is_integer(given):
            column = column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC"))  # milliseconds since 1970, as everywhere else
        finer = pa.types.is_timestamp(field.type) and pa.types.is_timestamp(column.type)  # nanoseconds are cut, as in JSON Lines
        return column.cast(field.type, safe=not finer)
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"column {field.name} of type {given} is not {field.type} ({one_line(exc)})") from exc


def _filled_received_at(columns: dict[str, Any]) -> pa.Array:
    """`received_at`, or the time in the seq where it is null."""
    seqs = columns["seq"].to_numpy()
    instants = pa.array((seqs >> TIME_SHIFT) + EPOCH_MS).cast(pa.timestamp("ms", tz="UTC"))
    return pc.coalesce(columns["received_at"], instants.cast(SEGMENT_SCHEMA.field("received_at").type))


def _milliseconds(instants: pa.ChunkedArray | pa.Array) -> Integers:
    found: Integers = pc.floor_temporal(instants, unit="millisecond").cast(pa.int64()).to_numpy() // 1000
    return found
