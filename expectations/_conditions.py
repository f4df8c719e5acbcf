"""Conditions about one row as SQL that Spark and DuckDB both read. Null counts as true, except in conditions about null."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Conditions:
    """How one engine writes them."""

    text: str  # before the quotes of a text in which backslashes escape
    quote: str  # around a name: "at" is a word of SQL

    def not_null(self, columns: Iterable[str]) -> str:
        """Every one of these columns has a value."""
        return " AND ".join(f"{self.name(column)} IS NOT NULL" for column in columns)

    def in_set(self, column: str, words: Iterable[Any]) -> str:
        """The value is one of these."""
        return f"{self.name(column)} IN ({', '.join(map(self.literal, words))})"

    def between(self, column: str, least: Any, most: Any) -> str:
        """The value lies between these, bounds included; None: it has no such bound."""
        name = self.name(column)
        upper = "" if most is None else f" AND {name} <= {self.literal(most)}"
        return f"{name} >= {self.literal(least)}{upper}"

    def matches(self, column: str, regex: str) -> str:
        """The regular expression is found in the value."""
        return f"regexp_like({self.name(column)}, {self.literal(regex)})"

    def not_less(self, greater: str, less: str) -> str:
        """One column's value is not smaller than the other's."""
        return f"{self.name(greater)} >= {self.name(less)}"

    def name(self, column: str) -> str:
        """A column."""
        return f"{self.quote}{column}{self.quote}"

    def literal(self, value: Any) -> str:
        """A value."""
        match value:
            case datetime():
                return f"TIMESTAMP '{value.astimezone(UTC).isoformat()}'"
            case timedelta():
                return f"INTERVAL '{value.total_seconds():f}' SECOND"
            case str():
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                return f"{self.text}'{escaped}'"
            case _:
                return str(value)


SPARK = Conditions("", "`")
DUCKDB = Conditions("E", '"')
