"""The rows of one table in one run, as Great Expectations checks them: with a boolean column for each custom rule."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from expectations._keys import absent, repeated, repeated_in
from expectations._rules import (
    VOCABULARIES,
    AnyRule,
    Between,
    Holds,
    InSet,
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
from manifold.contracts.errors import Permanent
from manifold.contracts.seq import EPOCH, EPOCH_MS, TIME_SHIFT

MAX_SAMPLES = 5  # rows that a finding shows
# Clocks of one fleet of servers agree within a minute; a larger difference is a misconfigured clock.
CLOCK_TOLERANCE = timedelta(minutes=1)
_PLACE = re.compile(r"(?<!:):(\w+)")


@dataclass(frozen=True)
class Case:
    """The rows that one run adds to one table, with everything that its rules refer to."""

    suite: Suite
    frame: DataFrame
    references: Mapping[str, DataFrame]
    run_id: str
    as_of: datetime
    data_wait: timedelta
    count: int | None = None  # of the rows, if it is known

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        return self.frame.count() if self.count is None else self.count

    @cached_property
    def flagged(self) -> DataFrame:
        """The rows with a boolean column for each rule that Great Expectations does not check natively.

        The column has the name of the rule, and is false where a row breaks it. Null keeps a rule, as in an SQL CHECK.
        """
        rules = self.suite.rules
        conditions = {rule.name: _is_kept(self.sql(rule.sql)) for rule in rules if isinstance(rule, Holds)}
        # In one call, because a rule's column may replace a table column of the same name, which another rule reads.
        found = self.frame.withColumns(conditions) if conditions else self.frame
        for rule in rules:
            match rule:
                case Unique() | UniqueTogether():
                    found = _with_flag(found, rule, repeated(self.frame, rule.columns, self.rows))
                case UniqueInTable():
                    found = _with_flag(found, rule, repeated_in(self.frame, rule.columns, self.reference(rule.in_table)))
                case Known():
                    unless = self.sql(rule.unless) if rule.unless else None
                    keys = absent(self.frame, rule.columns, self.reference(rule.in_table), unless, rule.bounded_by)
                    found = _with_flag(found, rule, keys, unless)
        return found

    def value(self, given: Any) -> Any:
        """Resolve a word such as `$latest` for this run; any other value is returned unchanged."""
        words = {"$run_id": (self.run_id,), "$epoch": EPOCH, "$latest": self.as_of + CLOCK_TOLERANCE, **VOCABULARIES}
        return words.get(given, given) if isinstance(given, str) else given

    def sql(self, condition: str) -> str:
        """The condition with literals in place of placeholders such as `:as_of`."""
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
            Permanent: the caller of the audit did not pass the table.
        """
        if table not in self.references:
            raise Permanent(f"the rules of {self.suite.table} look values up in {table}; pass references[{table!r}]")
        return self.references[table]

    def offending(self, rule: AnyRule) -> DataFrame:
        """The rows that break the rule."""
        name = _name(rule.name) if rule.name in self.flagged.columns else self.condition(rule)
        return self.flagged.where(f"NOT coalesce({name}, true)")

    def condition(self, rule: AnyRule) -> str:
        """The SQL condition of rows that keep the rule. Only for rules that Great Expectations checks natively."""
        match rule:
            case NotNull(columns=columns):
                return " AND ".join(f"{_name(column)} IS NOT NULL" for column in columns)
            case InSet(column=column, value_set=values):
                return f"{_name(column)} IN ({_literals(self.value(values))})"
            case Between(column=column, min_value=least, max_value=most):
                upper = "" if most is None else f" AND {_name(column)} <= {_literal(self.value(most))}"
                return f"{_name(column)} >= {_literal(self.value(least))}{upper}"
            case Matches(column=column, regex=regex):
                return f"regexp_like({_name(column)}, {_literal(regex)})"
            case NotLess(column_A=greater, column_B=less):
                return f"{_name(greater)} >= {_name(less)}"
        raise AssertionError(rule)

    def samples(self, rule: AnyRule, offending: DataFrame) -> tuple[str, ...]:
        """A few of the offending rows, as JSON objects: the key, and the columns that the rule is about."""
        payloads = {"payload"}  # too long to show
        shown = [name for name in dict.fromkeys((*self.suite.contract.key, *columns_of(rule))) if name not in payloads]
        row = sf.to_json(sf.struct(*shown), {"ignoreNullFields": "false"}).alias("row")
        return tuple(found["row"] for found in offending.limit(MAX_SAMPLES).select(row).collect())


def keys_of(offending: DataFrame, columns: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
    """Up to `most` distinct values of these columns."""
    return tuple(tuple(found) for found in offending.select(*columns).distinct().limit(most).collect())


def _is_kept(condition: str) -> Column:
    return sf.expr(f"coalesce({condition}, true)")


def _with_flag(frame: DataFrame, rule: AnyRule, broken: DataFrame | None, unless: str | None = None) -> DataFrame:
    """Add the rule's column: false for rows with one of the broken keys, except where `unless` is true."""
    if broken is None:
        return frame.withColumn(rule.name, sf.lit(True))
    columns = list(columns_of(rule))
    marked = frame.join(broken.select(*columns, sf.lit(False).alias(rule.name)), columns, "left")
    kept = sf.coalesce(rule.name, sf.lit(True))
    return marked.withColumn(rule.name, kept | sf.expr(f"coalesce({unless}, false)") if unless else kept)


def _name(column: str) -> str:
    return f"`{column}`"


def _literals(values: Iterable[Any]) -> str:
    return ", ".join(map(_literal, values))


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
