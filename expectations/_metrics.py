"""Metrics for Great Expectations on Spark and DuckDB, where the library has none, or a slow one.

A rule about one row is an aggregate, and all aggregates of a suite are resolved in one pass over the rows. Uniqueness, for which
the library uses a window over all rows, is found by hashes. Values of broken rows are not fetched here; the reports have samples
of their own.
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

import great_expectations.expectations  # noqa: F401  # registers the metrics that are replaced here
import pandas as pd
import pyarrow as pa
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
from great_expectations.expectations import registry
from great_expectations.expectations.metrics.metric_provider import MetricProvider, metric_partial, metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.validator.metric_configuration import MetricConfiguration
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from contracts.errors import ManifoldError
from expectations._arrow_rows import ArrowRows, Lookup
from expectations._keys import absent, repeated, repeated_in, with_keys
from expectations._spark_rows import SparkRows

ROW_COUNT = "table.row_count"
OF_ROWS, OF_REPEATED, OF_ABSENT = "rows.unexpected_count", "keys.repeated_count", "keys.absent_count"
UNIQUE, UNIQUE_TOGETHER = "column_values.unique", "compound_columns.unique"
MAPPED = (
    "column_pair_values.a_greater_than_b",
    "column_values.between",
    "column_values.in_set",
    "column_values.match_regex",
    "column_values.nonnull",
    UNIQUE,
    UNIQUE_TOGETHER,
)

Given = dict[str, Any]
# Which audit this thread is at: a stream and a batch ingest may have theirs in one session of Spark.
AUDIT: ContextVar[str] = ContextVar("AUDIT", default="")
# By table, how rows in memory find those of the whole table.
LOOKUPS: ContextVar[dict[str, Lookup]] = ContextVar("LOOKUPS", default={})  # noqa: B039  # never changed
# Why rows in memory could not be judged. The library keeps what a metric raises as text, and goes on.
RAISED: ContextVar[list[ManifoldError]] = ContextVar("RAISED")


def view_of(table: str) -> str:
    """The name of the temporary view of all rows of a table during an audit."""
    return f"manifold_audit_{AUDIT.get()}_{table}"


def batch_of(rows: SparkRows | ArrowRows) -> Any:
    """The rows as the library takes them. Columns stay Arrow columns, so that `_arrow` gets them back unchanged."""
    return rows.frame if isinstance(rows, SparkRows) else rows.table.to_pandas(types_mapper=pd.ArrowDtype)


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
    return ArrowRows(pa.Table.from_pandas(frame, preserve_index=False))


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


def _all_rows(**given: Any) -> int:
    return int(given["metrics"][ROW_COUNT])


def _no_values(**_: Any) -> list[Any]:
    return []


def _replace(name: str, spark: Any, pandas: Any) -> None:
    """Register our function for a metric of the library, under its name and with its arguments."""
    known = registry._registered_metrics[name]
    keys = {"domain_keys": known["metric_domain_keys"], "value_keys": known["metric_value_keys"]}
    answers = {"_spark": metric_value(SparkDFExecutionEngine)(spark), "_pandas": _in_memory(pandas)}
    type(spark.__name__, (_WithRows,), {"metric_name": name, **keys, **answers})


_log = logging.getLogger(registry.__name__)
_level = _log.level
_log.setLevel(logging.ERROR)  # it warns of what is meant here
try:
    for _name in MAPPED:
        _replace(f"{_name}.unexpected_values", _no_values, _no_values)
    for _name in (UNIQUE, UNIQUE_TOGETHER):
        _replace(f"{_name}.unexpected_count", _rows_repeated, _arrow_rows_repeated)
    _replace(f"{UNIQUE_TOGETHER}.filtered_row_count", _all_rows, _all_rows)
finally:
    _log.setLevel(_level)
