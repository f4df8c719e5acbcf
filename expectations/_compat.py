"""Private names of Great Expectations that the reports use.

`meta_properties_to_render`, the documented way to add columns to a page, raises an error for every page in 1.24. The overrides
of two private methods of the renderer can go when a release renders these properties.
"""

from collections.abc import Callable
from typing import Any

from great_expectations.render.renderer.content_block import ValidationResultsTableContentBlockRenderer

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
