# ruff: noqa: S608 (the SQL is made of the suites beside this file, and of nothing that anybody sent)
"""Each rule as one boolean column: the run's rows are read once, and whatever judges after that reads flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from contracts.errors import Permanent
from contracts.seq import EPOCH, EPOCH_MS, TIME_SHIFT
from expectations._suites import Holds, Iso3779, Known, OneOf, Present, Rule, Suite, Unique
from expectations._vin import iso_3779

OFFENDERS = 1000  # values of one rule that are looked up again in the rows; beyond, counts say "at least"
SAMPLES = 5  # rows that a finding shows
# Clocks of one fleet of servers are within a minute; what differs more is set wrong.
CLOCK_TOLERANCE = timedelta(minutes=1)


@dataclass
class Case:
    """One table's rows in one run, and what its rules need to know. `prepare` reads the rows; `close` lets go of what is kept."""

    suite: Suite
    frame: DataFrame
    references: Mapping[str, DataFrame]
    run_id: str
    as_of: datetime
    data_wait: timedelta
    rows: int = 0
    _kept: list[DataFrame] = field(default_factory=list)
    _offenders: dict[str, DataFrame] = field(default_factory=dict)

    def prepare(self) -> "Case":
        """Flag each row by the rules that need the row alone; look the others' values up, unless there are no rows."""
        alone = [rule for rule in self.suite.rules if not isinstance(rule, Unique | Known)]
        self.rows = self._flag(alone).count()
        for rule in self.suite.rules if self.rows else ():
            if isinstance(rule, Unique | Known):
                # Bounded, so that a run that breaks a rule everywhere can still say so.
                found = self._search(rule).limit(OFFENDERS)
                if values := found.collect():
                    self._offenders[rule.name] = self.frame.sparkSession.createDataFrame(values, found.schema)
        return self

    @property
    def flags(self) -> DataFrame:
        """One boolean column a rule, false where the row breaks it; kept in memory, because several passes follow."""
        if self._offenders:
            return self._flag(self.suite.rules)
        alone = self._kept[0]
        return alone.select("*", *(sf.lit(True).alias(rule.name) for rule in self.suite.rules if rule.name not in alone.columns))

    def close(self) -> None:
        """Free the flags."""
        for frame in self._kept:
            frame.unpersist()

    def _flag(self, rules: Sequence[Rule]) -> DataFrame:
        columns = ", ".join(f"coalesce({self._condition(rule)}, true) AS {rule.name}" for rule in rules)
        self._kept.append(self._sql(f"SELECT {columns} FROM {{frame}} AS f").persist(StorageLevel.MEMORY_AND_DISK))
        return self._kept[-1]

    def samples(self, rule: Rule) -> tuple[str, ...]:
        """A few rows that break `rule`, as JSON objects: the key, and the columns that the rule is about."""
        about = rule.shows if isinstance(rule, Holds) else ()
        if isinstance(rule, Present | Known | Unique):
            about = rule.columns
        elif isinstance(rule, OneOf | Iso3779):
            about = (rule.column,)
        payloads = {"payload"}  # too long to show
        shown = [name for name in dict.fromkeys((*self.suite.contract.key, *about)) if name not in payloads]
        row = f"to_json(struct({', '.join(shown)}), map('ignoreNullFields', 'false')) AS row"
        rows = self._sql(f"SELECT {row} FROM {{frame}} AS f WHERE NOT coalesce({self._condition(rule)}, true) LIMIT {SAMPLES}")
        return tuple(found["row"] for found in rows.collect())

    def keys(self, rule: Rule, by: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
        """Up to `most` different values of the columns `by` among the rows that break `rule`."""
        broken = f"FROM {{frame}} AS f WHERE NOT coalesce({self._condition(rule)}, true)"
        return tuple(tuple(found) for found in self._sql(f"SELECT DISTINCT {', '.join(by)} {broken} LIMIT {most}").collect())

    def _search(self, rule: Unique | Known) -> DataFrame:
        keys = ", ".join(rule.columns)
        match rule:
            case Unique(among=None):
                return self._sql(f"SELECT {keys} FROM {{frame}} GROUP BY {keys} HAVING count(*) > 1")
            case Unique(among=str(among)):
                table = f"(SELECT {keys} FROM {{{among}}})"
                return self._sql(
                    f"SELECT {keys} FROM {table} LEFT SEMI JOIN {{frame}} USING ({keys}) GROUP BY {keys} HAVING count(*) > 1",
                    among,
                )
            case Known(among=among, unless=unless, bounded_by=column):
                known = f"SELECT {keys} FROM {{{among}}}" + (f" WHERE {self._bounds(column)}" if column else "")
                judged = f"(SELECT DISTINCT {keys} FROM {{frame}} WHERE NOT coalesce({_braced(unless or 'false')}, false))"
                return self._sql(f"SELECT {keys} FROM {judged} LEFT ANTI JOIN ({known}) USING ({keys})", among)
        raise AssertionError(rule)

    def _bounds(self, column: str) -> str:
        """Literals, because Iceberg leaves files out by them and not by a join."""
        least, greatest = self._sql(f"SELECT min({column}), max({column}) FROM {{frame}}").collect()[0]
        return f"{column} BETWEEN {least} AND {greatest}"

    def _condition(self, rule: Rule) -> str:
        match rule:
            case Present(columns=columns):
                return " AND ".join(f"{column} IS NOT NULL" for column in columns)
            case Unique() | Known():
                if rule.name not in self._offenders:
                    return "true"
                same = " AND ".join(f"o.{column} = f.{column}" for column in rule.columns)
                excused = f" OR {_braced(rule.unless)}" if isinstance(rule, Known) and rule.unless else ""
                return f"(NOT EXISTS (SELECT 1 FROM {{{rule.name}}} AS o WHERE {same}){excused})"
            case OneOf(column=column):
                return f"{column} IN ({', '.join(repr(word) for word in rule.words)})"
            case Iso3779(column=column):
                return _braced(iso_3779(column))
            case Holds(sql=sql):
                return f"({_braced(sql)})"

    def _sql(self, query: str, among: str | None = None) -> DataFrame:
        frames: dict[str, Any] = {"frame": self.frame, **self._offenders}
        if among is not None:
            frames[among] = self._reference(among)
        used = {name: frame for name, frame in frames.items() if f"{{{name}}}" in query}
        times = {"as_of": self.as_of, "epoch": EPOCH, "data_wait": self.data_wait, "clock_tolerance": CLOCK_TOLERANCE}
        values = {**times, "epoch_ms": EPOCH_MS, "time_shift": TIME_SHIFT, "run_id": self.run_id}
        return self.frame.sparkSession.sql(query, args=values, **used)

    def _reference(self, table: str) -> DataFrame:
        if table not in self.references:
            raise Permanent(
                f"the rules of {self.suite.table} look values up in {table}; pass references[{table!r}], the run's rows included"
            )
        return self.references[table]


def _braced(sql: str) -> str:
    """Braces of a condition, such as those of a regular expression, are no names of frames."""
    return sql.replace("{", "{{").replace("}", "}}")
