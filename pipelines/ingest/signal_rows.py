"""Builds the rows of the signal tables from parsed messages: DataFrame in, DataFrame out.

The input has the columns of `manifold.archive.parsing` (SIGNALS, PROCESSED, STATUSES). No session, clock or table name is needed.
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from manifold.contracts.tables import Table
from pipelines.ingest.transforms import instant_of

# Table column → column of the parsed messages that has the instant in microseconds.
_MICROSECOND_COLUMNS: Mapping[str, str] = {"captured_at": "captured_us", "seen_at": "seen_us"}


def signal_table_rows(table: Table, parsed: DataFrame) -> DataFrame:
    """One row per accepted message."""
    columns = [_column(column.name) for column in table.columns]
    return parsed.where("reason is null").select(*columns)


def _column(name: str) -> Column:
    """The value of a table column, computed from the columns of the parsed messages."""
    if name in _MICROSECOND_COLUMNS:
        return sf.timestamp_micros(_MICROSECOND_COLUMNS[name]).alias(name)
    if name == "received_at":
        return instant_of("seq").alias(name)
    return sf.col(name)
