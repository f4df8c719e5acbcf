"""Great Expectations: suites from the rules, a checkpoint over the flags, pages for people.

Great Expectations 1.24 sends nothing anywhere by itself; `GX_ANALYTICS_ENABLED` keeps it so in releases that would.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")  # read at import

import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.core import ExpectationValidationResult
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.render.renderer.site_builder import DefaultSiteIndexBuilder
from pyspark.sql import DataFrame

from expectations._suites import Rule, Severity, Suite

for chatty in ("great_expectations", "py4j"):  # dozens of lines about themselves, in which the run's own would drown
    logging.getLogger(chatty).setLevel(logging.WARNING)
# Counts only: values of flags say nothing, and fetching them costs two more Spark jobs for each rule.
RESULT_FORMAT = {"result_format": "BASIC", "partial_unexpected_count": 0}
GX_SEVERITY = {Severity.ERROR: "critical", Severity.WARNING: "warning"}


class NoIndex(DefaultSiteIndexBuilder):  # type: ignore[misc]  # the library is read without its types
    """Leaves the site's index alone, and the pages of runs that this process does not know: the usual one removes them."""

    def build(self, *_: object, **__: object) -> tuple[None, None]:
        """Nothing to do."""
        return None, None


def judge(
    cases: Sequence[tuple[Suite, DataFrame]], *, run_id: str, as_of: datetime, site: Path
) -> Mapping[str, Mapping[str, int]]:
    """How many rows break each rule, by table and rule; writes the pages of this run into `site`.

    Args:
        cases: suites with their flags, one boolean column for each rule; none of them empty.
        run_id: names the run in the pages.
        as_of: when the run was judged; the pages of a run that is judged twice differ by it.
        site: the folder of the pages.
    """
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)}
    index = {"class_name": "NoIndex", "module_name": __name__}
    context.add_data_docs_site(
        "site", {"class_name": "SiteBuilder", "store_backend": backend, "site_index_builder": index, "show_how_to_buttons": False}
    )
    source = context.data_sources.add_spark("lake", persist=False)
    broken = {}
    for suite, flags in cases:
        batch = source.add_dataframe_asset(suite.table).add_batch_definition_whole_dataframe("run")
        expected = context.suites.add(gx.ExpectationSuite(suite.table, expectations=[_expectation(rule) for rule in suite.rules]))
        definition = context.validation_definitions.add(gx.ValidationDefinition(name=suite.table, data=batch, suite=expected))
        result = definition.run(
            batch_parameters={"dataframe": flags},
            result_format=RESULT_FORMAT,
            run_id=gx.RunIdentifier(run_name=run_id, run_time=as_of),
        )
        broken[suite.table] = {one.expectation_config.kwargs["column"]: _count(one) for one in result.results if not one.success}
    context.build_data_docs()
    return broken


def _count(result: ExpectationValidationResult) -> int:
    if result.exception_info["raised_exception"]:
        raise RuntimeError(f"{result.expectation_config} could not be judged: {result.exception_info['exception_traceback']}")
    return int(result.result["unexpected_count"])


def _expectation(rule: Rule) -> gxe.ExpectColumnValuesToBeInSet:
    return gxe.ExpectColumnValuesToBeInSet(
        column=rule.name, value_set=[True], severity=GX_SEVERITY[rule.severity], description=str(rule), notes=rule.why
    )
