"""Metrics for Great Expectations on Spark and DuckDB, where the library has none, or a slow one.

A rule about one row is an aggregate, and all aggregates of a suite are resolved in one pass over the rows. Uniqueness, for which
the library uses a window over all rows, is found by hashes. Values of broken rows are not fetched here; the reports have samples
of their own.
"""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

import great_expectations.expectations  # noqa: F401  # registers the metrics that are replaced here
import pandas as pd
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
from great_expectations.expectations import registry
from great_expectations.expectations.metrics.metric_provider import MetricProvider, metric_partial, metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.validator.metric_configuration import MetricConfiguration
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from expectations._arrow_rows import ArrowRows, Lookup
from expectations._conditions import DUCKDB
from expectations._keys import absent, repeated, repeated_in, with_keys
from expectations._spark_rows import SparkRows
from manifold.contracts.errors import ManifoldError

ROW_COUNT = "table.row_count"
OF_ROWS, OF_REPEATED, OF_ABSENT = "rows.unexpected_count", "keys.repeated_count", "keys.absent_count"
UNIQUE, UNIQUE_TOGETHER = "column_values.unique", "compound_columns.unique"

TABLE = "manifold.table"  # under which a frame that is given to the library names its table
Given = dict[str, Any]
Condition = Callable[[Given, Given], str]  # of a metric's domain and values

NOT_LESS = "column_pair_values.a_greater_than_b"
# Metrics about one row, by what DuckDB is asked in their place; Spark has the library's own, which are aggregates.
OF_ONE_ROW: Mapping[str, Condition] = {
    "column_values.between": lambda of, by: DUCKDB.between(of["column"], by["min_value"], by["max_value"]),
    "column_values.in_set": lambda of, by: DUCKDB.in_set(of["column"], by["value_set"]),
    "column_values.match_regex": lambda of, by: DUCKDB.matches(of["column"], by["regex"]),
    "column_values.nonnull": lambda of, _: DUCKDB.not_null([of["column"]]),
    NOT_LESS: lambda of, _: DUCKDB.not_less(of["column_A"], of["column_B"]),
}
MAPPED = (*OF_ONE_ROW, UNIQUE, UNIQUE_TOGETHER)
# Which audit this thread is at: a stream and a batch ingest may have theirs in one session of Spark.
AUDIT: ContextVar[str] = ContextVar("AUDIT", default="")
# By table, how rows in memory find those of the whole table.
LOOKUPS: ContextVar[dict[str, Lookup]] = ContextVar("LOOKUPS", default={})  # noqa: B039  # never changed
# By table, the rows that are judged by DuckDB. The library is given none of them: it asks for numbers, and gets them from here.
BY_DUCKDB: ContextVar[dict[str, ArrowRows]] = ContextVar("BY_DUCKDB", default={})  # noqa: B039  # never changed
# Why rows in memory could not be judged. The library keeps what a metric raises as text, and goes on.
RAISED: ContextVar[list[ManifoldError]] = ContextVar("RAISED")


def view_of(table: str) -> str:
    """The name of the temporary view of all rows of a table during an audit."""
    return f"manifold_audit_{AUDIT.get()}_{table}"


def batch_of(table: str, rows: SparkRows | ArrowRows) -> Any:
    """The rows as the library takes them; of those that DuckDB judges, an empty frame with their columns and the table's name."""
    if isinstance(rows, SparkRows):
        return rows.frame
    frame = pd.DataFrame(columns=rows.columns)
    frame.attrs[TABLE] = table
    return frame


def _in_memory(answer: Callable[..., int]) -> Callable[..., int]:
    """A metric of rows in memory, which leaves in `RAISED` what Manifold raises."""

    @wraps(answer)
    def told(*args: Any, **given: Any) -> int:
        try:
            return answer(*args, **given)
        except ManifoldError as exc:
            RAISED.get().append(exc)
            raise

    registered: Callable[..., int] = metric_value(engine=PandasExecutionEngine)(told)
    return registered


class _WithRows(MetricProvider):  # type: ignore[misc]  # the library is read without its types
    """A metric that depends on the number of rows."""

    @classmethod
    def _get_evaluation_dependencies(cls, metric: MetricConfiguration, **_: Any) -> Given:
        domain = {"batch_id": metric.metric_domain_kwargs.get("batch_id")}
        return {ROW_COUNT: MetricConfiguration(ROW_COUNT, metric_domain_kwargs=domain)}


class RowsThatBreak(TableMetricProvider):  # type: ignore[misc]
    """The number of rows for which a condition is false; the number of ingest where it has counted the same (`COUNTED`)."""

    metric_name = OF_ROWS
    value_keys = ("sql", "counted")

    @metric_partial(  # type: ignore[untyped-decorator]
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(**given: Any) -> tuple[Column, Given, Given]:
        values = given["metric_value_kwargs"]
        counted = values.get("counted")
        asked = sf.count_if(~sf.coalesce(sf.expr(values["sql"]), sf.lit(True)))
        return asked if counted is None else sf.max(sf.lit(counted)), given["metric_domain_kwargs"], {}

    @_in_memory
    def _pandas(**given: Any) -> int:
        values = given["metric_value_kwargs"]
        counted: int | None = values.get("counted")
        return _arrow(given).breaking(values["sql"]).count() if counted is None else counted


class RowsRepeatedInTable(_WithRows):
    """The number of rows whose key stands in several rows of a whole table."""

    metric_name = OF_REPEATED
    value_keys = ("columns", "in_table")

    @metric_value(engine=SparkDFExecutionEngine)  # type: ignore[untyped-decorator]
    def _spark(**given: Any) -> int:
        frame, values = _frame(given), given["metric_value_kwargs"]
        return _count(frame, values["columns"], repeated_in(frame, values["columns"], _whole(frame, values["in_table"])))

    @_in_memory
    def _pandas(**given: Any) -> int:
        values = given["metric_value_kwargs"]
        return _arrow(given).repeated_in(values["columns"], LOOKUPS.get()[values["in_table"]]).count()


class RowsAbsentFromTable(_WithRows):
    """The number of rows whose key is not in a whole table."""

    metric_name = OF_ABSENT
    value_keys = ("columns", "in_table", "unless", "bounded_by")

    @metric_value(engine=SparkDFExecutionEngine)  # type: ignore[untyped-decorator]
    def _spark(**given: Any) -> int:
        frame, values = _frame(given), given["metric_value_kwargs"]
        columns, unless, whole = values["columns"], values.get("unless"), _whole(frame, values["in_table"])
        return _count(frame, columns, absent(frame, columns, whole, unless, values.get("bounded_by")), unless)

    @_in_memory
    def _pandas(**given: Any) -> int:
        values = given["metric_value_kwargs"]
        return _arrow(given).absent(values["columns"], LOOKUPS.get()[values["in_table"]], values.get("unless")).count()


def _frame(given: Given) -> DataFrame:
    engine: SparkDFExecutionEngine = given["execution_engine"]
    frame: DataFrame = engine.get_domain_records({"batch_id": given["metric_domain_kwargs"].get("batch_id")})
    return frame


def _arrow(given: Given) -> ArrowRows:
    engine: PandasExecutionEngine = given["execution_engine"]
    frame = engine.get_domain_records({"batch_id": given["metric_domain_kwargs"].get("batch_id")})
    return BY_DUCKDB.get()[frame.attrs[TABLE]]


def _whole(frame: DataFrame, table: str) -> DataFrame:
    return frame.sparkSession.table(view_of(table))


def _count(frame: DataFrame, columns: list[str], keys: DataFrame | None, unless: str | None = None) -> int:
    return 0 if keys is None else with_keys(frame, columns, keys, unless).count()


def _rows_repeated(**given: Any) -> int:
    frame = _frame(given)
    columns = _columns(given)
    return _count(frame, columns, repeated(frame, columns, given["metrics"][ROW_COUNT]))


def _arrow_rows_repeated(**given: Any) -> int:
    return _arrow(given).repeated(_columns(given)).count()


def _columns(given: Given) -> list[str]:
    domain = given["metric_domain_kwargs"]
    return domain.get("column_list") or [domain["column"]]


def _arrow_rows_that_break(condition: Condition) -> Callable[..., int]:
    def count(**given: Any) -> int:
        return _arrow(given).breaking(condition(given["metric_domain_kwargs"], given["metric_value_kwargs"])).count()

    return count


def _row_count(**given: Any) -> int:
    return _arrow(given).count()


def _all_rows(**given: Any) -> int:
    return int(given["metrics"][ROW_COUNT])


def _no_values(**_: Any) -> list[Any]:
    return []


def _replace(name: str, *, spark: Callable[..., Any] | None = None, pandas: Callable[..., Any], kind: type = _WithRows) -> None:
    """Register our functions for a metric of the library, under its name and with its arguments."""
    known = registry._registered_metrics[name]
    answers: Given = {"domain_keys": known["metric_domain_keys"], "value_keys": known["metric_value_keys"]}
    answers["_pandas"] = _in_memory(pandas)
    if spark is not None:
        answers["_spark"] = metric_value(SparkDFExecutionEngine)(spark)
    type(pandas.__name__, (kind,), {"metric_name": name, **answers})


_log = logging.getLogger(registry.__name__)
_level = _log.level
_log.setLevel(logging.ERROR)  # it warns of what is meant here
try:
    _replace(ROW_COUNT, pandas=_row_count, kind=MetricProvider)
    for _name in MAPPED:
        _replace(f"{_name}.unexpected_values", spark=_no_values, pandas=_no_values)
    for _name, _condition in OF_ONE_ROW.items():
        _replace(f"{_name}.unexpected_count", pandas=_arrow_rows_that_break(_condition))
    for _name in (UNIQUE, UNIQUE_TOGETHER):
        _replace(f"{_name}.unexpected_count", spark=_rows_repeated, pandas=_arrow_rows_repeated)
    _replace(f"{UNIQUE_TOGETHER}.filtered_row_count", spark=_all_rows, pandas=_all_rows)
    _replace(f"{NOT_LESS}.filtered_row_count", pandas=_all_rows)
finally:
    _log.setLevel(_level)
