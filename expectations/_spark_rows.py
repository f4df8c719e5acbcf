"""Rows in Spark, asked what a rule asks. `ArrowRows` are the same where they are few."""

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from expectations._keys import absent, repeated, repeated_in, with_keys


class SparkRows:
    """Some rows of one table."""

    text, quote = "", "`"  # before the quotes of a text in which backslashes escape, and around a name: "at" is a word of SQL

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame

    def count(self) -> int:
        """How many there are."""
        return self.frame.count()

    def breaking(self, condition: str) -> "SparkRows":
        """Those for which it is false."""
        return SparkRows(self.frame.where(f"NOT coalesce({condition}, true)"))

    def repeated(self, columns: Sequence[str], rows: int) -> "SparkRows":
        """Those whose key several of these `rows` rows have, for up to `OFFENDERS` keys; keys with a null do not count."""
        return SparkRows(with_keys(self.frame, columns, repeated(self.frame, columns, rows)))

    def repeated_in(self, columns: Sequence[str], whole: DataFrame) -> "SparkRows":
        """Those whose key several rows of a whole table have."""
        return SparkRows(with_keys(self.frame, columns, repeated_in(self.frame, columns, whole)))

    def absent(self, columns: Sequence[str], whole: DataFrame, unless: str | None, bounded_by: str | None) -> "SparkRows":
        """Those whose key a whole table has not, but for those for which `unless` is true."""
        unknown = absent(self.frame, columns, whole, unless, bounded_by)
        return SparkRows(with_keys(self.frame, columns, unknown, unless))

    def samples(self, columns: Sequence[str], most: int) -> tuple[str, ...]:
        """A few of them, as JSON objects."""
        row = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"}).alias("row")
        return tuple(found["row"] for found in self.frame.limit(most).select(row).collect())

    def keys(self, columns: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
        """Up to `most` different values of these columns."""
        return tuple(tuple(found) for found in self.frame.select(*columns).distinct().limit(most).collect())
