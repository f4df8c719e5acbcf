"""The rows of one table in one run: a rule as SQL, and the rows that break a rule.

The SQL is Spark's. DuckDB understands all of it that the suites use, and queries rows in memory with it (`_arrow_rows`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from expectations._rules import (
    VOCABULARIES,
    AnyRule,
    Between,
    Holds,
    InSet,
    Iso3779,
    Known,
    Matches,
    NotLess,
    NotNull,
    Unique,
    UniqueInTable,
    UniqueTogether,
    columns_of,
)
from expectations._suites import Suite
from expectations._vin import iso_3779
from manifold.contracts.errors import Permanent
from manifold.contracts.seq import EPOCH, EPOCH_MS, TIME_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from expectations._arrow_rows import ArrowRows, Lookup
    from expectations._spark_rows import SparkRows

SAMPLES = 5  # rows that a finding shows
# Clocks of one fleet of servers are within a minute; what differs more is set wrong.
CLOCK_TOLERANCE = timedelta(minutes=1)
_PLACE = re.compile(r"(?<!:):(\w+)")


@dataclass(frozen=True)
class Case:
    """The rows of one table in one run, with what its rules refer to."""

    suite: Suite
    rows: "SparkRows | ArrowRows"
    references: "Mapping[str, DataFrame] | Mapping[str, Lookup]"  # in the form of `rows`
    run_id: str
    as_of: datetime
    data_wait: timedelta
    counted: Mapping[str, int]

    def value(self, given: Any) -> Any:
        """The value of a word such as `$latest` in this run; any other value is returned unchanged."""
        words = {"$run_id": (self.run_id,), "$epoch": EPOCH, "$latest": self.as_of + CLOCK_TOLERANCE, **VOCABULARIES}
        return words.get(given, given) if isinstance(given, str) else given

    def sql(self, condition: str) -> str:
        """The condition with literals in place of `:as_of` and the like."""
        values = {
            "as_of": self.as_of,
            "epoch_ms": EPOCH_MS,
            "time_shift": TIME_SHIFT,
            "data_wait": self.data_wait,
            "clock_tolerance": CLOCK_TOLERANCE,
        }
        return _PLACE.sub(lambda place: self.rows.words.literal(values[place[1]]), condition)

    def reference(self, table: str) -> Any:
        """All rows of a table in which a rule looks values up, in the form of `rows`.

        Raises:
            Permanent: the caller of the audit has not passed the table.
        """
        if table not in self.references:
            raise Permanent(
                f"the rules of {self.suite.table} look values up in {table}; pass references[{table!r}] or lookups[{table!r}], "
                "with the run's rows"
            )
        return self.references[table]

    def offending(self, rule: AnyRule, rows: int) -> "SparkRows | ArrowRows":
        """The rows that break the rule; of a rule about keys, those of up to `OFFENDERS` keys."""
        match rule:
            case Unique() | UniqueTogether():
                return self.rows.repeated(rule.columns, rows)
            case UniqueInTable():
                return self.rows.repeated_in(rule.columns, self.reference(rule.in_table))
            case Known():
                unless = self.sql(rule.unless) if rule.unless else None
                return self.rows.absent(rule.columns, self.reference(rule.in_table), unless, rule.bounded_by)
            case _:
                return self.rows.breaking(self.condition(rule))

    def condition(self, rule: AnyRule) -> str:
        """The SQL condition that is true of a row that keeps the rule. Only for rules about one row."""
        words = self.rows.words
        match rule:
            case NotNull(columns=columns):
                return words.not_null(columns)
            case InSet(column=column, value_set=values):
                return words.in_set(column, self.value(values))
            case Between(column=column, min_value=least, max_value=most):
                return words.between(column, self.value(least), self.value(most))
            case Matches(column=column, regex=regex):
                return words.matches(column, regex)
            case NotLess(column_A=greater, column_B=less):
                return words.not_less(greater, less)
            case Iso3779(column=column):
                return iso_3779(column)
            case Holds(sql=sql):
                return f"({self.sql(sql)})"
        raise AssertionError(rule)

    def samples(self, rule: AnyRule, offending: "SparkRows | ArrowRows") -> tuple[str, ...]:
        """A few of the offending rows, as JSON objects: the key, and the columns that the rule is about."""
        payloads = {"payload"}  # too long to show
        shown = [name for name in dict.fromkeys((*self.suite.contract.key, *columns_of(rule))) if name not in payloads]
        return offending.samples(shown, SAMPLES)
