"""The rows of one table in one run: what a rule means in Spark SQL, and, once it is broken, which rows break it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from contracts.errors import Permanent
from contracts.seq import EPOCH, EPOCH_MS, TIME_SHIFT
from expectations._keys import absent, repeated, repeated_in, with_keys
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

SAMPLES = 5  # rows that a finding shows
# Clocks of one fleet of servers are within a minute; what differs more is set wrong.
CLOCK_TOLERANCE = timedelta(minutes=1)
_PLACE = re.compile(r"(?<!:):(\w+)")


@dataclass(frozen=True)
class Case:
    """One table's rows in one run, and what its rules need to know."""

    suite: Suite
    frame: DataFrame
    references: Mapping[str, DataFrame]
    run_id: str
    as_of: datetime
    data_wait: timedelta
    counted: Mapping[str, int]

    def value(self, given: Any) -> Any:
        """What a word such as `$latest` stands for in this run; anything else stands for itself."""
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
        return _PLACE.sub(lambda place: _literal(values[place[1]]), condition)

    def reference(self, table: str) -> DataFrame:
        """All rows of a table in which a rule looks values up.

        Raises:
            Permanent: the caller has not passed it.
        """
        if table not in self.references:
            raise Permanent(
                f"the rules of {self.suite.table} look values up in {table}; pass references[{table!r}], the run's rows included"
            )
        return self.references[table]

    def offending(self, rule: AnyRule, rows: int) -> DataFrame:
        """The rows that break the rule, of all `rows`; of a rule about keys, those of up to `OFFENDERS` keys."""
        match rule:
            case Unique() | UniqueTogether():
                return with_keys(self.frame, rule.columns, repeated(self.frame, rule.columns, rows))
            case UniqueInTable():
                twice = repeated_in(self.frame, rule.columns, self.reference(rule.in_table))
                return with_keys(self.frame, rule.columns, twice)
            case Known():
                unless = self.sql(rule.unless) if rule.unless else None
                unknown = absent(self.frame, rule.columns, self.reference(rule.in_table), unless, rule.bounded_by)
                return with_keys(self.frame, rule.columns, unknown, unless)
            case _:
                return self.frame.where(f"NOT coalesce({self.condition(rule)}, true)")

    def condition(self, rule: AnyRule) -> str:
        """What is true of a row that keeps the rule, in Spark SQL; of rules about one row alone."""
        match rule:
            case NotNull(columns=columns):
                return " AND ".join(f"{column} IS NOT NULL" for column in columns)
            case InSet(column=column, value_set=words):
                return f"{column} IN ({', '.join(map(_literal, self.value(words)))})"
            case Between(column=column, min_value=least, max_value=most):
                upper = "" if most is None else f" AND {column} <= {_literal(self.value(most))}"
                return f"{column} >= {_literal(self.value(least))}{upper}"
            case Matches(column=column, regex=regex):
                return f"{column} RLIKE {_literal(regex)}"
            case NotLess(column_A=greater, column_B=less):
                return f"{greater} >= {less}"
            case Iso3779(column=column):
                return iso_3779(column)
            case Holds(sql=sql):
                return f"({self.sql(sql)})"
        raise AssertionError(rule)

    def samples(self, rule: AnyRule, offending: DataFrame) -> tuple[str, ...]:
        """A few of the offending rows, as JSON objects: the key, and the columns that the rule is about."""
        payloads = {"payload"}  # too long to show
        shown = [name for name in dict.fromkeys((*self.suite.contract.key, *columns_of(rule))) if name not in payloads]
        row = sf.to_json(sf.struct(*shown), {"ignoreNullFields": "false"}).alias("row")
        return tuple(found["row"] for found in offending.select(row).limit(SAMPLES).collect())


def keys_of(offending: DataFrame, by: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
    """Up to `most` different values of the columns `by` among the offending rows."""
    return tuple(tuple(found) for found in offending.select(*by).distinct().limit(most).collect())


def _literal(value: Any) -> str:
    match value:
        case datetime():
            return f"TIMESTAMP '{value.astimezone(UTC).isoformat()}'"
        case timedelta():
            return f"INTERVAL '{value.total_seconds():f}' SECOND"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        case _:
            return str(value)
