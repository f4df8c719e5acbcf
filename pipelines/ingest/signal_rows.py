"""Makes the rows of the tables of signals from parsed messages: over DataFrames, and over Arrow tables.

The input has the columns of `manifold.archive.parsing` (SIGNALS, PROCESSED, STATUSES). No session, no clock, no name of a table.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.tables import INSTANT, Table
from pipelines.ingest.arrow_rows import instants_of
from pipelines.ingest.transforms import instant_of

# Columns that a record has as microseconds, by the table's name of them.
_OF_MICROS: Mapping[str, str] = {"captured_at": "captured_us", "seen_at": "seen_us"}


def rows_of(table: Table, parsed: DataFrame) -> DataFrame:
    """One row for each accepted message."""
    columns = [_column(column.name) for column in table.columns]
    return parsed.where("reason is null").select(*columns)


def table_of(table: Table, accepted: pa.Table) -> pa.Table:
    """`rows_of` in Arrow, of what was accepted."""
    columns = {column.name: _values(column.name, accepted) for column in table.columns}
    return pa.table(columns).cast(table.arrow_schema)


def once(accepted: pa.Table) -> pa.Table:
    """The first message, by seq, of each raw signal."""
    keys = ["device_id", "captured_us", "content_digest"]
    ordered = accepted.sort_by("seq")
    place = pa.array(range(ordered.num_rows), pa.int64())
    first = ordered.append_column("place", place).group_by(keys, use_threads=False).aggregate([("place", "min")])
    return ordered.take(first["place_min"])


def _column(name: str) -> Column:
    if name in _OF_MICROS:
        return sf.timestamp_micros(_OF_MICROS[name]).alias(name)
    return instant_of("seq").alias(name) if name == "received_at" else sf.col(name)


def _values(name: str, rows: pa.Table) -> pa.ChunkedArray:
    if name in _OF_MICROS:
        return pc.cast(rows[_OF_MICROS[name]], INSTANT)
    return instants_of(rows["seq"]) if name == "received_at" else rows[name]
