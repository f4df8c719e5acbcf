"""Checks rows with Great Expectations on Spark: a suite and a checkpoint per table, and Data Docs of all of them.

Great Expectations 1.24 sends no data to third parties by itself; `GX_ANALYTICS_ENABLED` stops releases that would.
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
from manifold.lake.reports import validation_result

# Dozens of lines about themselves would drown the run's own. One module of the library sets a level of its own.
for chatty in ("great_expectations", "great_expectations.data_context.types.base", "py4j"):
    logging.getLogger(chatty).setLevel(logging.WARNING)
# Counts only: sample rows are looked up once it is known which rules are broken.
RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}
GX_SEVERITY = {rules.Severity.ERROR: "critical", rules.Severity.WARNING: "warning"}


class _ExpectFlag(gxe.ExpectColumnValuesToBeInSet):  # type: ignore[misc]  # the library is read without its types
    """The boolean column that `Case.flagged` adds for a rule is true in every row."""

    value_set: list[bool] = [True]  # noqa: RUF012  # a field of the library's model

    def get_validation_dependencies(self, *given: Any, **named: Any) -> ValidationDependencies:
        """Ask for no values: they would take a query of their own for each rule, and all are `false`."""
        asked = super().get_validation_dependencies(*given, **named)
        asked.remove_metric_configuration(f"{self.map_metric}.unexpected_values")
        return asked


class ExpectRowsToHold(_ExpectFlag):
    """A condition over one row is never false."""


class ExpectKeyToBeUnique(_ExpectFlag):
    """A key occurs once in the rows that the run adds, or in a whole table."""


class ExpectValuesToExistInTable(_ExpectFlag):
    """The values of a row exist in a row of another table."""


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result for one table: its number of rows, and by broken rule how many rows break it."""

    rows: int
    broken: Mapping[str, int]


TableResults = Mapping[str, TableResult]  # by table


def judge(cases: Sequence[Case], *, run_id: str, as_of: datetime, site: Path) -> TableResults:
    """Check the rows of each table by its suite, and write this run's pages and results into the folder `site`.

    `as_of`, the instant of the audit, distinguishes the pages of two audits of one run.

    Raises:
        RuntimeError: a rule could not be evaluated; the message has the library's traceback.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site(SITE, site_config(site))
    lake = context.data_sources.add_spark("lake", persist=False)
    identity = gx.RunIdentifier(run_name=run_id, run_time=as_of)
    verdicts = {}
    for case in cases:
        table = case.suite.table
        batch = lake.add_dataframe_asset(table).add_batch_definition_whole_dataframe("run")
        suite = context.suites.add(gx.ExpectationSuite(table, expectations=list(_expectations(case))))
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))
        checkpoint = gx.Checkpoint(name=table, validation_definitions=[definition], result_format=RESULT_FORMAT)
        run = checkpoint.run(batch_parameters={"dataframe": case.flagged}, run_id=identity)
        (result,) = run.run_results.values()
        verdicts[table] = _verdict(result)
        file = site / validation_result(run_id, table)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result.to_json_dict(), indent=1))
    if cases:
        context.build_data_docs(site_names=[SITE])
    return verdicts


def _verdict(result: ExpectationSuiteValidationResult) -> TableResult:
    """Count the rows, and those that break each rule; for a rule about several columns, the worst column counts."""
    rows, broken = 0, dict[str, int]()
    for one in result.results:
        if one.exception_info.get("raised_exception", True):
            raise RuntimeError(f"{one.expectation_config} could not be judged: {one.exception_info}")
        rows = max(rows, int(one.result["element_count"]))
        if not one.success:
            name = one.expectation_config.meta["rule"]
            broken[name] = max(broken.get(name, 0), int(one.result["unexpected_count"]))
    return TableResult(rows, broken)


def _expectations(case: Case) -> Iterator[gxe.Expectation]:
    """Yield a suite's expectations: native ones where the library has them, one per column for a rule about several."""
    for rule in case.suite.rules:
        meta = {"rule": rule.name, "severity": rule.severity.value, "reason": rule.why}
        about: dict[str, Any] = {"severity": GX_SEVERITY[rule.severity], "meta": meta}
        flag = {"column": rule.name, "description": str(rule)} | about
        match rule:
            case rules.NotNull():
                for column in rule.columns:
                    yield gxe.ExpectColumnValuesToNotBeNull(column=column, **about)
            case rules.InSet():
                yield gxe.ExpectColumnValuesToBeInSet(column=rule.column, value_set=list(case.value(rule.value_set)), **about)
            case rules.Between():
                bounds = {"min_value": case.value(rule.min_value), "max_value": case.value(rule.max_value)}
                yield gxe.ExpectColumnValuesToBeBetween(column=rule.column, **bounds, **about)
            case rules.Matches():
                yield gxe.ExpectColumnValuesToMatchRegex(column=rule.column, regex=rule.regex, **about)
            case rules.NotLess():
                # Null counts as true: a comparison with null breaks nothing, and excluding rows would take another pass.
                pair = {"column_A": rule.column_A, "column_B": rule.column_B, "or_equal": True, "ignore_row_if": "neither"}
                yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, **about)
            case rules.Unique() | rules.UniqueTogether() | rules.UniqueInTable():
                yield ExpectKeyToBeUnique(**flag)
            case rules.Known():
                yield ExpectValuesToExistInTable(**flag)
            case rules.Holds():
                yield ExpectRowsToHold(**flag)
