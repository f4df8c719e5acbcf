"""Checks rows with Great Expectations on Spark: one suite and one checkpoint per table, and Data Docs for all tables.

Great Expectations 1.24 sends no data to third parties. `GX_ANALYTICS_ENABLED` is set to false in case another release does.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read at import

import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.core import ExpectationSuiteValidationResult
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.validator.validator import ValidationDependencies

from expectations import _rules as rules
from expectations._docs import SITE, site_config
from expectations._rows import Case
from manifold.contracts.tables import Severity
from manifold.lake.reports import validation_result

# These libraries log dozens of lines per audit. The module in the middle sets its own level, so it is named separately.
for logger_name in ("great_expectations", "great_expectations.data_context.types.base", "py4j"):
    logging.getLogger(logger_name).setLevel(logging.WARNING)
# Only counts are computed here. Sample rows are looked up afterwards, for broken rules only.
RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}
GX_SEVERITY = {Severity.ERROR: "critical", Severity.WARNING: "warning"}


class _ExpectFlag(gxe.ExpectColumnValuesToBeInSet):  # type: ignore[misc]  # the library is read without its types
    """Expects true in every row of the boolean column that `Case.flagged_rows` adds for a rule."""

    value_set: list[bool] = [True]  # noqa: RUF012  # a field of the library's model

    def get_validation_dependencies(self, *arguments: Any, **options: Any) -> ValidationDependencies:
        """Return the metrics to compute, without the unexpected values.

        These would take another query for each rule, and are all `false`.
        """
        metrics = super().get_validation_dependencies(*arguments, **options)
        metrics.remove_metric_configuration(f"{self.map_metric}.unexpected_values")
        return metrics


class ExpectRowsToHold(_ExpectFlag):
    """Expects that a condition over a single row is never false."""


class ExpectKeyToBeUnique(_ExpectFlag):
    """Expects that a key occurs only once in the rows that the run adds, or only once in a whole table."""


class ExpectValuesToExistInTable(_ExpectFlag):
    """Expects that the values of each row exist in a row of another table."""


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result of the check of one table."""

    rows: int  # number of checked rows
    broken: Mapping[str, int]  # broken rule → number of rows that break it


TableResults = Mapping[str, TableResult]  # table → result


def judge(cases: Sequence[Case], *, run_id: str, as_of: datetime, site: Path) -> TableResults:
    """Check the rows of each table against its suite, and write the run's pages and results into the folder `site`.

    `as_of` is the instant of the audit; it distinguishes the pages of several audits of the same run.

    Raises:
        RuntimeError: a rule could not be evaluated. The message contains the library's traceback.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site(SITE, site_config(site))
    lake = context.data_sources.add_spark("lake", persist=False)
    identity = gx.RunIdentifier(run_name=run_id, run_time=as_of)
    results = {}
    for case in cases:
        table = case.suite.table
        batch = lake.add_dataframe_asset(table).add_batch_definition_whole_dataframe("run")
        suite = context.suites.add(gx.ExpectationSuite(table, expectations=list(_expectations(case))))
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))
        checkpoint = gx.Checkpoint(name=table, validation_definitions=[definition], result_format=RESULT_FORMAT)
        run = checkpoint.run(batch_parameters={"dataframe": case.flagged_rows}, run_id=identity)
        (result,) = run.run_results.values()  # the checkpoint has one validation, and so one result
        results[table] = _table_result(result)
        result_file = site / validation_result(run_id, table)
        result_file.parent.mkdir(parents=True, exist_ok=True)
        result_file.write_text(json.dumps(result.to_json_dict(), indent=1))
    if cases:
        context.build_data_docs(site_names=[SITE])
    return results


def _table_result(validation: ExpectationSuiteValidationResult) -> TableResult:
    """The counts in the library's result for a table.

    A rule about several columns has an expectation per column; the column with the most offending rows counts.
    """
    rows = 0
    broken: dict[str, int] = {}
    for outcome in validation.results:
        # If metrics could not be computed, `exception_info` has an entry per metric instead of `raised_exception`.
        has_failed = outcome.exception_info.get("raised_exception", True)
        if has_failed:
            raise RuntimeError(f"{outcome.expectation_config} could not be judged: {outcome.exception_info}")
        rows = max(rows, int(outcome.result["element_count"]))
        if not outcome.success:
            name = outcome.expectation_config.meta["rule"]
            broken[name] = max(broken.get(name, 0), int(outcome.result["unexpected_count"]))
    return TableResult(rows, broken)


def _expectations(case: Case) -> Iterator[gxe.Expectation]:
    """Yield the expectations for the rules of a table's suite.

    Rules that the library checks in one pass become expectations of the library. All other rules become expectations about the
    boolean column that `Case.flagged_rows` adds. A rule that several columns are not null becomes an expectation per column.
    """
    for rule in case.suite.rules:
        meta = {"rule": rule.name, "severity": rule.severity.value, "reason": rule.why}
        common: dict[str, Any] = {"severity": GX_SEVERITY[rule.severity], "meta": meta}
        flag = {"column": rule.name, "description": str(rule)} | common
        match rule:
            case rules.NotNull():
                for column in rule.columns:
                    yield gxe.ExpectColumnValuesToNotBeNull(column=column, **common)
            case rules.InSet():
                values = list(case.resolve(rule.value_set))
                yield gxe.ExpectColumnValuesToBeInSet(column=rule.column, value_set=values, **common)
            case rules.Between():
                bounds = {"min_value": case.resolve(rule.min_value), "max_value": case.resolve(rule.max_value)}
                yield gxe.ExpectColumnValuesToBeBetween(column=rule.column, **bounds, **common)
            case rules.Matches():
                yield gxe.ExpectColumnValuesToMatchRegex(column=rule.column, regex=rule.regex, **common)
            case rules.NotLess():
                # To ignore rows would take another scan, so none is ignored. A row with a null keeps the rule anyway, because a
                # comparison with null is never false.
                pair = {"column_A": rule.column_A, "column_B": rule.column_B, "or_equal": True, "ignore_row_if": "neither"}
                yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, **common)
            case rules.Unique() | rules.UniqueTogether() | rules.UniqueInTable():
                yield ExpectKeyToBeUnique(**flag)
            case rules.Known():
                yield ExpectValuesToExistInTable(**flag)
            case rules.Holds():
                yield ExpectRowsToHold(**flag)
