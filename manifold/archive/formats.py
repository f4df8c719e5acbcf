"""Decodes the bytes of an archive file into messages with the columns of the envelope. No Spark.

The formats are described in `docs/guides/archives.md`.
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

REQUIRED_COLUMNS = ("topic", "payload")
# The first and last instant that Python can represent.
ENDS = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def decode(path: str, content: bytes) -> DecodedFile:
    """Decode the content of the file at `path`, a path below the archive's root.

    If several messages have the same seq, only the first of them is returned.

    Raises:
        Unreadable: the content is not a valid segment.
    """
    try:
        decoded = _from_parquet(path, content) if is_parquet(path) else from_lines(path, content)
    except (Unreadable, MemoryError):  # a lack of memory says nothing about the file
        raise
    except Exception as exc:  # the libraries raise various errors for invalid bytes
        raise Unreadable(f"reading it failed ({type(exc).__name__}: {one_line(exc)})") from exc
    seqs = decoded.messages["seq"].to_numpy()
    if len(seqs) < 2 or bool((np.diff(seqs) > 0).all()):
        return decoded  # ascending, so no seq is repeated
    _, first_indices = np.unique(seqs, return_index=True)  # by seq: the index of the first message that has it
    if len(first_indices) == len(seqs):
        return decoded
    in_file_order = pa.array(np.sort(first_indices))
    return DecodedFile(decoded.messages.take(in_file_order), decoded.derived)


def check_columns(schema: pa.Schema) -> None:
    """Check the columns of a Parquet file.

    Raises:
        Unreadable: a column occurs twice, a column that cannot be derived is missing, or the seqs are not integers.
    """
    if repeated := [name for name in SEGMENT_SCHEMA.names if schema.names.count(name) > 1]:
        raise Unreadable(f"columns {', '.join(repeated)} occur more than once")
    missing = [name for name in REQUIRED_COLUMNS if name not in schema.names]
    if missing:
        raise Unreadable(f"columns {', '.join(missing)} are missing")
    if "seq" not in schema.names and "received_at" not in schema.names:
        raise Unreadable("columns seq and received_at are missing; one of them must be there")
    if "seq" in schema.names:
        seq_type = schema.field("seq").type
        # A seq has 63 bits, which do not fit into a float, so different seqs could become equal.
        if not pa.types.is_integer(seq_type):
            raise Unreadable(f"column seq is of type {seq_type}; write it as a 64-bit integer (BIGINT)")


@cache  # not computed at import, because the first conversion of a Python value loads pandas
def _first_and_last_instant() -> tuple[pa.Scalar, pa.Scalar]:
    """`ENDS` as Arrow scalars. An Arrow column can contain instants outside them."""
    first, last = (pa.scalar(end, pa.timestamp("us", tz="UTC")) for end in ENDS)
    return first, last


def _from_parquet(path: str, content: bytes) -> DecodedFile:
    """Decode a Parquet segment; raises `Unreadable` if it does not have the form of the envelope."""
    table = _read_parquet(content)
    check_columns(table.schema)
    try:
        columns = {field.name: _column(table, field) for field in SEGMENT_SCHEMA}
        columns["stream"] = pa.repeat(path.split("/")[0], table.num_rows)  # the folder is decisive, not the file's own column
        pa.table(columns).validate(full=True)  # without this check, text that is not UTF-8 would crash a later reader
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"columns are not of the envelope's types ({one_line(exc)})") from exc
    are_seqs_derived = "seq" not in table.schema.names
    time_source = "received_at" if are_seqs_derived else "seq"  # each of the two columns can be computed from the other
    incomplete = [name for name in (*REQUIRED_COLUMNS, time_source) if columns[name].null_count]
    if incomplete:
        raise Unreadable(f"rows without {', '.join(incomplete)}")
    if are_seqs_derived:
        columns["seq"] = pa.array(derived_seqs(path, _milliseconds(columns["received_at"])))
    elif table.num_rows and pc.min(columns["seq"]).as_py() < 0:
        raise Unreadable("a seq is negative")
    if columns["received_at"].null_count:
        columns["received_at"] = _filled_received_at(columns)
    _check_instants(columns["received_at"])
    return DecodedFile(pa.table(columns), are_seqs_derived)


def _read_parquet(content: bytes) -> pa.Table:
    try:
        # `pq.read_table` is avoided because it loads pyarrow.dataset and pandas, which takes half a second. Threads are not used
        # because the process aborts if an Arrow thread still holds `content` when Python ends (apache/arrow#34314).
        return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    except (pa.ArrowException, OSError) as exc:
        raise Unreadable(f"not a whole Parquet file ({one_line(exc)})") from exc


def _check_instants(instants: pa.ChunkedArray | pa.Array) -> None:
    """Raise `Unreadable` if Python cannot represent one of these times of receipt."""
    first, last = _first_and_last_instant()
    is_outside = pc.or_(pc.less(instants, first), pc.greater(instants, last))
    if pc.any(is_outside).as_py():
        raise Unreadable("a received_at lies in no year from 1 to 9999")


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """The column of the envelope, cast to its type; all null if the table lacks it."""
    if field.name not in table.schema.names:
        return pa.nulls(table.num_rows, field.type)
    column = table[field.name]
    original_type = column.type
    try:
        if pa.types.is_timestamp(field.type) and pa.types.is_integer(original_type):  # the integers are milliseconds since 1970
            column = column.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
        # An unsafe cast of timestamps truncates nanoseconds, which JSON Lines files also lose. A safe cast would raise an error.
        truncates = pa.types.is_timestamp(field.type) and pa.types.is_timestamp(column.type)
        return column.cast(field.type, safe=not truncates)
    except (pa.ArrowException, ValueError) as exc:
        raise Unreadable(f"column {field.name} of type {original_type} is not {field.type} ({one_line(exc)})") from exc


def _filled_received_at(columns: dict[str, Any]) -> pa.Array:
    """The column `received_at`, in which the time in the seq replaces nulls."""
    seqs = columns["seq"].to_numpy()
    instants = pa.array((seqs >> TIME_SHIFT) + EPOCH_MS).cast(pa.timestamp("ms", tz="UTC"))
    return pc.coalesce(columns["received_at"], instants.cast(SEGMENT_SCHEMA.field("received_at").type))


def _milliseconds(instants: pa.ChunkedArray | pa.Array) -> Integers:
    """The instants in Unix ms, rounded down."""
    microseconds = pc.floor_temporal(instants, unit="millisecond").cast(pa.int64()).to_numpy()
    milliseconds: Integers = microseconds // 1000
    return milliseconds
