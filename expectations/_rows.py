"""Prepares rows for Great Expectations: adds a boolean column for each rule that the library lacks or checks slowly."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from expectations._keys import keys_missing_in, keys_repeated_in, repeated_keys
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
# The clocks of all servers must agree within this time; a larger difference means that a clock is misconfigured.
CLOCK_TOLERANCE = timedelta(minutes=1)
_PLACEHOLDER = re.compile(r"(?<!:):(\w+)")  # such as `:as_of`, but not a cast such as `::date`


@dataclass(frozen=True)
class Case:
    """The rows that a run adds to a table, and the values and tables to which the table's rules refer."""

    suite: Suite
    frame: DataFrame
    references: Mapping[str, DataFrame]  # table name → all rows of a table in which rules look up values
    run_id: str
    as_of: datetime  # the instant of the audit
    data_wait: timedelta  # how long a trigger may wait for its data before missing data is a warning
    known_count: int | None = None  # the number of rows in `frame`, if it is known

    @cached_property
    def row_count(self) -> int:
        """The number of rows in `frame`."""
        return self.frame.count() if self.known_count is None else self.known_count

    @cached_property
    def flagged_rows(self) -> DataFrame:
        """The rows with an additional boolean column for each rule that Great Expectations lacks, and for each unique key.

        The library would find repeated keys by a shuffle of all rows, which takes ten times as long (`repeated_keys`).

        The column has the name of the rule, and is false in rows that break the rule. Where a condition is null, the row keeps
        the rule, as in an SQL CHECK.
        """
        # All conditions are evaluated in one step, on the original columns. Otherwise, a rule with the name of a column would
        # replace this column before the condition of another rule reads it.
        flags = {rule.name: _is_kept(self.fill_in(rule.sql)) for rule in self.suite.rules if isinstance(rule, Holds)}
        rows = self.frame.withColumns(flags) if flags else self.frame  # Spark Connect refuses an empty mapping
        for rule in self.suite.rules:
            match rule:
                case Unique() | UniqueTogether():
                    rows = _with_flag(rows, rule, repeated_keys(self.frame, rule.columns, self.row_count))
                case UniqueInTable():
                    rows = _with_flag(rows, rule, keys_repeated_in(self.reference(rule.in_table), self.frame, rule.columns))
                case Known():
                    table = self.reference(rule.in_table)
                    unless = self.fill_in(rule.unless) if rule.unless else None
                    keys = keys_missing_in(table, self.frame, rule.columns, unless=unless, bounded_by=rule.bounded_by)
                    rows = _with_flag(rows, rule, keys, unless)
                case _:
                    pass  # `Holds` has its flag already, and Great Expectations checks all other rules without a flag
        return rows

    def resolve(self, value: Any) -> Any:
        """The value in this audit of a variable of the suites, such as `$latest`; any other value is returned unchanged."""
        variables = {"$run_id": (self.run_id,), "$epoch": EPOCH, "$latest": self.as_of + CLOCK_TOLERANCE, **VOCABULARIES}
        if isinstance(value, str) and value in variables:
            return variables[value]
        return value

    def fill_in(self, condition: str) -> str:
        """The condition with literals instead of placeholders such as `:as_of`."""
        values = {
            "as_of": self.as_of,
            "epoch_ms": EPOCH_MS,
            "time_shift": TIME_SHIFT,
            "data_wait": self.data_wait,
            "clock_tolerance": CLOCK_TOLERANCE,
        }
        return _PLACEHOLDER.sub(lambda placeholder: _literal(values[placeholder[1]]), condition)

    def reference(self, table: str) -> DataFrame:
        """All rows of a table in which a rule looks up values.

        Raises:
            Permanent: the caller of the audit did not pass the table.
        """
        if table not in self.references:
            raise Permanent(f"the rules of {self.suite.table} look values up in {table}; pass references[{table!r}]")
        return self.references[table]

    def offending_rows(self, rule: AnyRule) -> DataFrame:
        """The rows that break the rule: its flag or, for a rule without a flag, its condition is false there, and not null."""
        has_flag = rule.name in self.flagged_rows.columns
        is_kept = _quoted(rule.name) if has_flag else self.condition(rule)
        return self.flagged_rows.where(f"NOT coalesce({is_kept}, true)")

    def condition(self, rule: AnyRule) -> str:
        """The SQL condition that is true for rows that keep the rule. Only for rules without a flag."""
        match rule:
            case NotNull(columns=columns):
                return " AND ".join(f"{_quoted(column)} IS NOT NULL" for column in columns)
            case InSet(column=column, value_set=values):
                return f"{_quoted(column)} IN ({_literals(self.resolve(values))})"
            case Between(column=column, min_value=least, max_value=most):
                upper_bound = "" if most is None else f" AND {_quoted(column)} <= {_literal(self.resolve(most))}"
                return f"{_quoted(column)} >= {_literal(self.resolve(least))}{upper_bound}"
            case Matches(column=column, regex=regex):
                return f"regexp_like({_quoted(column)}, {_literal(regex)})"
            case NotLess(column_A=greater, column_B=less):
                return f"{_quoted(greater)} >= {_quoted(less)}"
        raise AssertionError(rule)

    def samples(self, rule: AnyRule, offending: DataFrame) -> tuple[str, ...]:
        """A few of the offending rows as JSON objects, with the key columns and the columns that the rule names."""
        unique_columns = dict.fromkeys((*self.suite.contract.key, *columns_of(rule)))  # in order, each once
        columns = [column for column in unique_columns if column != "payload"]  # a payload is too long to show
        row_json = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"}).alias("row")
        return tuple(row["row"] for row in offending.limit(MAX_SAMPLES).select(row_json).collect())


def keys_of(offending: DataFrame, columns: Sequence[str], limit: int) -> tuple[tuple[Any, ...], ...]:
    """The distinct values of these columns, at most `limit`."""
    return tuple(tuple(row) for row in offending.select(*columns).distinct().limit(limit).collect())


def _is_kept(condition: str) -> Column:
    """Condition that a row keeps a rule: true unless the rule's condition is false."""
    return sf.expr(f"coalesce({condition}, true)")


def _with_flag(frame: DataFrame, rule: AnyRule, broken_keys: DataFrame | None, unless: str | None = None) -> DataFrame:
    """Add the rule's boolean column: false for rows with one of the broken keys, unless the condition `unless` is true.

    If `broken_keys` is None, no key breaks the rule, and the column is true in all rows.
    """
    if broken_keys is None:
        return frame.withColumn(rule.name, sf.lit(True))
    columns = list(columns_of(rule))
    flags = broken_keys.select(*columns, sf.lit(False).alias(rule.name))
    is_kept = sf.coalesce(rule.name, sf.lit(True))
    if unless:
        is_kept = is_kept | sf.expr(f"coalesce({unless}, false)")
    return frame.join(flags, columns, "left").withColumn(rule.name, is_kept)


def _quoted(column: str) -> str:
    """The name of the column in SQL."""
    return f"`{column}`"


def _literals(values: Iterable[Any]) -> str:
    return ", ".join(map(_literal, values))


def _literal(value: Any) -> str:
    """The value as a literal in Spark SQL."""
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
