"""Judges rows with Great Expectations: suites made of the rules, one checkpoint over all tables, and Data Docs.

Great Expectations 1.24 sends no data to others by itself; `GX_ANALYTICS_ENABLED` keeps releases that would from it.
"""

import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read at import

import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.checkpoint.actions import ValidationAction
from great_expectations.checkpoint.checkpoint import CheckpointResult
from great_expectations.compatibility.pydantic import PrivateAttr
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context.types.base import ProgressBarsConfig

from expectations import _custom as custom
from expectations import _rules as rules
from expectations._arrow_rows import ArrowRows
from expectations._docs import SITE, WriteDataDocs, site_config
from expectations._metrics import AUDIT, BY_DUCKDB, LOOKUPS, RAISED, batch_of, view_of
from expectations._rows import Case

# Dozens of lines about themselves, in which the run's own would drown. One module of the library sets a level of its own.
for chatty in ("great_expectations", "great_expectations.data_context.types.base", "py4j"):
    logging.getLogger(chatty).setLevel(logging.WARNING)
# Counts only: samples of broken rows are looked up once it is known which rules are broken.
RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}
GX_SEVERITY = {rules.Severity.ERROR: "critical", rules.Severity.WARNING: "warning"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one table: the number of rows, and by broken rule the number of rows that break it."""

    rows: int
    broken: Mapping[str, int]


Verdicts = Mapping[str, Verdict]  # by table; without those that have no rows
Step = Callable[[Verdicts], object]


class _Then(ValidationAction):  # type: ignore[misc]
    """An action that gets the verdicts under the project's names."""

    _step: Any = PrivateAttr()

    def run(self, checkpoint_result: CheckpointResult, action_context: Any = None) -> dict[str, Any]:  # noqa: ARG002
        """Give the verdicts on."""
        self._step(_verdicts(checkpoint_result))
        return {}


class PublishReport(_Then):
    """An action that puts Data Docs and the pages of the run into the store of the reports."""

    type: Literal["manifold_publish_report"] = "manifold_publish_report"


class KeepQualityResults(_Then):
    """An action that writes the rows of `quality_results`. It is the last one, because the run has its verdict with them."""

    type: Literal["manifold_keep_quality_results"] = "manifold_keep_quality_results"


class _NoRows(Exception):
    """No table has rows."""


class AuditCheckpoint(gx.Checkpoint):  # type: ignore[misc]
    """A checkpoint in which each table has its own rows. The library's judges one frame by every suite."""

    def _run_validation_definitions(
        self, batch_parameters: dict[str, Any], expectation_parameters: Any, result_format: Any, run_id: gx.RunIdentifier
    ) -> dict[Any, Any]:
        """Results by their identifiers. Tables without rows are left out, so they get no pages."""
        results = {}
        for definition in self.validation_definitions:
            frame = {"dataframe": batch_parameters[definition.name]}
            result = definition.run(
                checkpoint_id=self.id,
                batch_parameters=frame,
                expectation_parameters=expectation_parameters,
                result_format=result_format,
                run_id=run_id,
            )
            if _rows(result):
                results[self._build_result_key(definition, run_id, result.batch_id)] = result
        if not results:
            raise _NoRows
        return results


def judge(cases: Sequence[Case], *, run_id: str, as_of: datetime, site: Path, publish: Step, keep: Step) -> None:
    """Judge the rows of each table by its suite, write the pages of this run into `site`, publish them, and keep the verdicts.

    Args:
        cases: at least one.
        run_id: names the run in the pages.
        as_of: the instant of the judgement; it tells apart the pages of two judgements of one run.
        site: the folder of the pages.
        publish: copies the pages to the store of the reports.
        keep: stores the verdicts; called after `publish`.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    context.add_data_docs_site(SITE, site_config(site))
    sources: dict[bool, Any] = {}
    if any(_is_in_memory(case) for case in cases):
        sources[True] = context.data_sources.add_pandas("memory")
    if not all(_is_in_memory(case) for case in cases):
        sources[False] = context.data_sources.add_spark("lake", persist=False)
    definitions = []
    for case in cases:
        table = case.suite.table
        batch = sources[_is_in_memory(case)].add_dataframe_asset(table).add_batch_definition_whole_dataframe("run")
        suite = context.suites.add(_suite(case))
        definition = gx.ValidationDefinition(name=table, data=batch, suite=suite)
        definitions.append(context.validation_definitions.add(definition))
    report, results = PublishReport(name="report"), KeepQualityResults(name="quality_results")
    checkpoint = AuditCheckpoint(
        name="audit",
        validation_definitions=definitions,
        actions=[WriteDataDocs(name="data_docs"), report, results],
        result_format=RESULT_FORMAT,
    )
    for action, step in zip(checkpoint.actions[1:], (publish, keep), strict=True):
        action._step = step  # of the copies that the checkpoint has made
    frames = {case.suite.table: batch_of(case.suite.table, case.rows) for case in cases}
    with references_of(cases):
        try:
            checkpoint.run(batch_parameters=frames, run_id=gx.RunIdentifier(run_name=run_id, run_time=as_of))
        except _NoRows:
            publish({})
            keep({})


@contextmanager
def references_of(cases: Sequence[Case]) -> Iterator[None]:
    """The tables in which rules look values up, by the name under which the metrics find them."""
    tables: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for case in cases:
        tables[_is_in_memory(case)] |= {table: case.reference(table) for table in case.suite.references}
    rows = BY_DUCKDB.set({case.suite.table: case.rows for case in cases if isinstance(case.rows, ArrowRows)})
    known, raised, before = LOOKUPS.set(tables[True]), RAISED.set([]), AUDIT.set(secrets.token_hex(8))
    try:
        for table, whole in tables[False].items():
            whole.createOrReplaceTempView(view_of(table))
        yield
    finally:
        for table, whole in tables[False].items():
            whole.sparkSession.catalog.dropTempView(view_of(table))
        AUDIT.reset(before)
        RAISED.reset(raised)
        LOOKUPS.reset(known)
        BY_DUCKDB.reset(rows)


def _is_in_memory(case: Case) -> bool:
    return isinstance(case.rows, ArrowRows)


def _verdicts(result: CheckpointResult) -> Verdicts:
    return {of_table.suite_name: Verdict(_rows(of_table), _broken(of_table.results)) for of_table in result.run_results.values()}


def _rows(result: Any) -> int:
    """The number of rows that were judged.

    Raises:
        ManifoldError: rows in memory cannot be judged, as the one who asks for them or looks values up says.
        RuntimeError: a rule could not be judged; the message has the library's traceback.
    """
    for one in result.results:
        if one.exception_info.get("raised_exception", True):
            for raised in RAISED.get([]):
                raise raised
            raise RuntimeError(f"{one.expectation_config} could not be judged: {one.exception_info}")
    return max(int(one.result["element_count"]) for one in result.results)


def _broken(results: Sequence[ExpectationValidationResult]) -> Mapping[str, int]:
    """By rule, the number of rows that break it; of a rule about several columns, the number in the worst of them."""
    broken: dict[str, int] = {}
    for one in results:
        if not one.success:
            name = one.expectation_config.meta["rule"]
            broken[name] = max(broken.get(name, 0), int(one.result["unexpected_count"]))
    return broken


def _suite(case: Case) -> gx.ExpectationSuite:
    expected = [one for rule in case.suite.rules for one in _expectations(case, rule)]
    return gx.ExpectationSuite(case.suite.table, expectations=expected)


def _expectations(case: Case, rule: rules.AnyRule) -> Iterator[gxe.Expectation]:
    """The expectations of a rule: the library's own where it has one, and one for each column of a rule about several."""
    meta = {"rule": rule.name, "severity": rule.severity.value, "reason": rule.why}
    about = {"severity": GX_SEVERITY[rule.severity], "meta": meta}
    match rule:
        case rules.NotNull():
            for column in rule.columns:
                yield gxe.ExpectColumnValuesToNotBeNull(column=column, **about)
        case rules.Unique():
            yield gxe.ExpectColumnValuesToBeUnique(column=rule.column, **about)
        case rules.UniqueTogether():
            yield gxe.ExpectCompoundColumnsToBeUnique(column_list=list(rule.columns), **about)
        case rules.UniqueInTable():
            yield custom.ExpectValuesToBeUniqueInTable(columns=list(rule.columns), in_table=rule.in_table, **about)
        case rules.Known():
            unless = case.sql(rule.unless) if rule.unless else None
            asked = {"columns": list(rule.columns), "in_table": rule.in_table, "unless": unless, "bounded_by": rule.bounded_by}
            yield custom.ExpectValuesToExistInTable(**asked, **about)
        case rules.InSet():
            yield gxe.ExpectColumnValuesToBeInSet(column=rule.column, value_set=list(case.value(rule.value_set)), **about)
        case rules.Between():
            bounds = {"min_value": case.value(rule.min_value), "max_value": case.value(rule.max_value)}
            yield gxe.ExpectColumnValuesToBeBetween(column=rule.column, **bounds, **about)
        case rules.Matches():
            yield gxe.ExpectColumnValuesToMatchRegex(column=rule.column, regex=rule.regex, **about)
        case rules.NotLess():
            # Null counts as true: a comparison with null breaks nothing, and leaving rows out would take one more pass.
            pair = {"column_A": rule.column_A, "column_B": rule.column_B, "or_equal": True, "ignore_row_if": "neither"}
            yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, **about)
        case rules.Iso3779():
            sql, counted = case.condition(rule), case.counted.get(rule.counted or "")
            yield custom.ExpectVinsToBeIso3779(column=rule.column, sql=sql, counted=counted, **about)
        case rules.Holds():
            yield custom.ExpectRowsToHold(says=rule.says, sql=case.condition(rule), **about)
