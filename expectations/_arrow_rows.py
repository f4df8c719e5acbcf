# ruff: noqa: S608  # names of columns and conditions are those of our own suites
"""Rows in Arrow, queried with DuckDB as `SparkRows` are with Spark: the same conditions give the same answers.

They lie in this process's memory, or in files of which each question reads the columns that it is about. A condition that DuckDB
cannot evaluate raises `NotInArrow`, and the caller uses Spark.
"""

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from expectations._conditions import DUCKDB
from expectations._findings import NotInArrow
from manifold.lake.hashes import standing_twice

if TYPE_CHECKING:
    import duckdb

OFFENDERS = 1000  # keys of one rule that are looked up again in the rows
ALL = "SELECT * FROM rows"
# Spark's functions that the suites use and DuckDB knows by another name.
MACROS = (
    "unix_millis(t) AS epoch_ms(t)",
    "shiftright(a, b) AS a >> b",
    "regexp_like(text, pattern) AS regexp_matches(text, pattern)",
    "to_binary(text, format) AS encode(text)",  # of which the suites use UTF-8 alone
)
# Nothing but what it is given: no files, no net, no variables of this program.
CONFIG = {"threads": 2, "enable_external_access": False, "autoload_known_extensions": False, "python_enable_replacements": False}

Source: TypeAlias = pa.Table | ds.Dataset
# The rows of a whole table whose values in the columns of what it is given are among these, those of the run with them.
Lookup = Callable[[pa.Table], pa.Table]


def ask(sql: str, **tables: Source) -> pa.Table:
    """The rows of an SQL query over these tables."""
    try:
        import duckdb
    except ImportError as exc:  # a driver on a cluster
        raise NotInArrow("DuckDB is not installed here, so rules are judged on Spark") from exc
    with _database().cursor() as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, table in tables.items():
            session.register(name, table)  # seen by this session alone
        try:
            return session.sql(sql).to_arrow_table()
        except duckdb.Error as exc:
            raise NotInArrow(f"a rule cannot be judged without Spark: {' '.join(str(exc).split())[:300]}") from exc


@cache
def _database() -> "duckdb.DuckDBPyConnection":
    """An empty database of this process. To make one takes 16 ms, and an audit asks some sixty times."""
    import duckdb

    database = duckdb.connect(config=CONFIG)
    for macro in MACROS:
        database.execute(f"CREATE MACRO {macro}")
    return database


def _close() -> None:
    """A forked process must not have it: at its end it would wait for threads that only its parent has."""
    if _database.cache_info().currsize:
        _database().close()
        _database.cache_clear()


os.register_at_fork(before=_close)


class ArrowRows:
    """Some rows of one table, with the methods of `SparkRows`, and like those looked for when something is asked of them."""

    words = DUCKDB

    def __init__(self, source: Source, sql: str = ALL, **others: pa.Table) -> None:
        self._source, self._sql, self._others = source, sql, others

    @property
    def columns(self) -> list[str]:
        """The columns' names."""
        names: list[str] = self._source.schema.names
        return names

    def count(self) -> int:
        """The number of rows."""
        if self._sql != ALL:
            return int(self._ask("SELECT count(*) AS n FROM those")["n"][0].as_py())
        return int(self._source.num_rows if isinstance(self._source, pa.Table) else self._source.count_rows())

    def breaking(self, condition: str) -> "ArrowRows":
        """The rows for which `condition` is false."""
        return ArrowRows(self._source, f"SELECT * FROM rows WHERE NOT coalesce({condition}, true)")

    def repeated(self, columns: Sequence[str], _: int = 0) -> "ArrowRows":
        """The rows of up to `OFFENDERS` keys that occur in several of these rows; keys with a null do not count.

        Hashes of the keys are compared first, eight bytes a row; then the keys whose hash stands twice. Those of the first
        hashes are enough, but where none of them is the same: hashes can be made alike on purpose, to hide what is.
        """
        whole, hashed = _whole(columns), f"(hash({_listed(columns)}) >> 1)::BIGINT"
        hashes = standing_twice(self._ask(f"SELECT {hashed} AS hash FROM rows WHERE {whole}")["hash"])
        of_suspects = f"SELECT * FROM rows WHERE {whole} AND {hashed} IN (SELECT hash FROM suspects)"
        same = f"SELECT {_listed(columns)} FROM ({of_suspects}) GROUP BY ALL HAVING count(*) > 1 LIMIT {OFFENDERS}"
        for some in (hashes[:OFFENDERS], hashes[OFFENDERS:]):
            if len(some) and (keys := self._ask(same, suspects=pa.table({"hash": some}))).num_rows:
                return self._with_keys(columns, keys)
        return self._none()

    def repeated_in(self, columns: Sequence[str], find: Lookup) -> "ArrowRows":
        """The rows whose key stands in several rows of a whole table."""
        keys = f"SELECT {_listed(columns)} FROM found GROUP BY ALL HAVING count(*) > 1 LIMIT {OFFENDERS}"
        return self._with_keys(columns, ask(keys, found=find(self._keys(columns, _whole(columns)))))

    def absent(self, columns: Sequence[str], find: Lookup, unless: str | None, _: str | None = None) -> "ArrowRows":
        """The rows whose key is not in a whole table, except those for which `unless` is true."""
        asked = f"{_whole(columns)} AND NOT coalesce({unless}, false)" if unless else _whole(columns)
        keys = self._keys(columns, asked)
        unknown = ask(f"SELECT keys.* FROM keys ANTI JOIN found USING ({_listed(columns)})", keys=keys, found=find(keys))
        return self._with_keys(columns, unknown, asked)

    def samples(self, columns: Sequence[str], most: int) -> tuple[str, ...]:
        """A few of them, as JSON objects."""
        rows = self._ask(f"SELECT {_listed(columns)} FROM those LIMIT {most}").to_pylist()
        return tuple(json.dumps(row, default=_shown, ensure_ascii=False, separators=(",", ":")) for row in rows)

    def keys(self, columns: Sequence[str], most: int) -> tuple[tuple[Any, ...], ...]:
        """Up to `most` different values of these columns."""
        found = self._ask(f"SELECT DISTINCT {_listed(columns)} FROM those LIMIT {most}")
        return tuple(tuple(row.values()) for row in found.to_pylist())

    def _keys(self, columns: Sequence[str], asked: str) -> pa.Table:
        return self._ask(f"SELECT DISTINCT {_listed(columns)} FROM rows WHERE {asked}")

    def _with_keys(self, columns: Sequence[str], keys: pa.Table, asked: str = "true") -> "ArrowRows":
        """The rows among those asked for that have one of these keys; without keys no query is made."""
        if not keys.num_rows:
            return self._none()
        mine = f"(SELECT * FROM rows WHERE {asked}) AS mine"
        return ArrowRows(self._source, f"SELECT mine.* FROM {mine} SEMI JOIN keys USING ({_listed(columns)})", keys=keys)

    def _none(self) -> "ArrowRows":
        return ArrowRows(self._source, f"{ALL} LIMIT 0")

    def _ask(self, sql: str, **more: pa.Table) -> pa.Table:
        return ask(f"WITH those AS ({self._sql}) {sql}", rows=self._source, **self._others, **more)


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)  # "at" is a word of SQL


def _whole(columns: Sequence[str]) -> str:
    return " AND ".join(f'"{column}" IS NOT NULL' for column in columns)


def _shown(value: object) -> str:
    """The text, as Spark writes it, of a value that JSON does not have."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)
