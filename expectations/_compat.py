"""Private names of Great Expectations that the reports use, and a change of its queries.

`meta_properties_to_render`, the documented way to add columns to a page, raises an error for every page in 1.24. The overrides
of two private methods of the renderer can go when a release renders these properties.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.render.renderer.content_block import ValidationResultsTableContentBlockRenderer

VALUES = "unexpected_values"  # name of the metric
ADDED = {"Severity": "severity", "Reason": "reason"}  # column header → key in the rule's meta


class RulesTable(ValidationResultsTableContentBlockRenderer):  # type: ignore[misc]
    """The table of a Data Docs page, with two more columns: each rule's severity and reason."""

    @classmethod
    def _process_content_block(cls, content_block: Any, has_failed_evr: bool, render_object: Any = None) -> None:
        super()._process_content_block(content_block, has_failed_evr, render_object)
        content_block.header_row += list(ADDED)

    @classmethod
    def _get_content_block_fn(cls, expectation_type: str, expectation_config: Any = None) -> Callable[..., Any]:
        usual = super()._get_content_block_fn(expectation_type, expectation_config)

        def row(**given: Any) -> Any:
            cells = usual(**given)
            result = given["result"]
            # The icon alone tells a screen reader nothing.
            cells[0][0].string_template["template"] += " kept" if result.success else " broken"
            meta = result.expectation_config.meta
            cells[0] += [[meta[name]] for name in ADDED.values()]
            return cells

        return row


def look_up_no_values() -> None:
    """Keep expectations about a column from looking up unexpected values.

    They do so in a query each, even if a result may have none of them (`partial_unexpected_count` is 0). Counts are unaffected.
    """
    needed_metrics = ColumnMapExpectation.get_validation_dependencies

    @wraps(needed_metrics)
    def all_but_values(self: ColumnMapExpectation, *given: Any, **named: Any) -> Any:
        found = needed_metrics(self, *given, **named)
        found.metric_configurations.pop(f"{self.map_metric}.{VALUES}", None)
        return found

    ColumnMapExpectation.get_validation_dependencies = all_but_values
