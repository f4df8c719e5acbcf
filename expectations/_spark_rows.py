"""Rows in Spark, queried for the rules. `ArrowRows` has the same methods for rows in memory."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from expectations._conditions import SPARK
from expectations._keys import absent, repeated, repeated_in, with_keys


class SparkRows:
    """Some rows of one table."""

    words = SPARK

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    def count(self) -> int:
        """The number of rows."""
        return self.frame.count()

    def breaking(self, condition: str) -> "SparkRows":
        """The rows for which `condition` is false."""
        return SparkRows(self.frame.where(f"NOT coalesce({condition}, true)"))

    def repeated(self, columns: Sequence[str], rows: int) -> "SparkRows":
        """The rows of up to `OFFENDERS` keys that occur in several of these rows; keys with a null do not count."""
        return SparkRows(with_keys(self.frame, columns, repeated(self.frame, columns, rows)))

    def repeated_in(self, columns: Sequence[str], whole: DataFrame) -> "SparkRows":
        """The rows whose key stands in several rows of a whole table."""
        return SparkRows(with_keys(self.frame, columns, repeated_in(self.frame, columns, whole)))

    def absent(self, columns: Sequence[str], whole: DataFrame, unless: str | None, bounded_by: str | None) -> "SparkRows":
        """The rows whose key is not in a whole table, except those for which `unless` is true."""
        unknown = absent(self.frame, columns, whole, unless, bounded_by)
        return SparkRows(with_keys(self.frame, columns, unknown, unless))

    def samples(self, columns: Sequence[str], most: int) -> tuple[str, ...]:
        """A few of them, as JSON objects."""
        row = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"}).alias("row")
        return tuple(found["row"] for found in self.frame.limit(most).select(row).collect())

    def keys(self, columns: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
        """Up to `most` different values of these columns."""
        return tuple(tuple(found) for found in self.frame.select(*columns).distinct().limit(most).collect())
