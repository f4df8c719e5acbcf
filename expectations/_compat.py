"""Private names of Great Expectations that the reports use.

The documented way to add columns to a page is `meta_properties_to_render`, but in 1.24 it raises an error for every page. So this
module overrides two private methods of the renderer. It can be removed when a release of the library renders these properties.
"""

from collections.abc import Callable
from typing import Any

from great_expectations.render.renderer.content_block import ValidationResultsTableContentBlockRenderer

ADDED_COLUMNS = {"Severity": "severity", "Reason": "reason"}  # column header → key in the rule's meta


class RulesTable(ValidationResultsTableContentBlockRenderer):  # type: ignore[misc]
    """The table of a Data Docs page, with two more columns: each rule's severity and reason."""

    @classmethod
    def _process_content_block(cls, content_block: Any, has_failed_evr: bool, render_object: Any = None) -> None:
        super()._process_content_block(content_block, has_failed_evr, render_object)
        content_block.header_row += list(ADDED_COLUMNS)

    @classmethod
    def _get_content_block_fn(cls, expectation_type: str, expectation_config: Any = None) -> Callable[..., Any]:
        render_rows = super()._get_content_block_fn(expectation_type, expectation_config)

        def render_extended_rows(**arguments: Any) -> Any:
            """Render an expectation as the library does, as one row, and append the cells of `ADDED_COLUMNS` to that row."""
            rows = render_rows(**arguments)
            row = rows[0]
            result = arguments["result"]
            icon = row[0]
            icon.string_template["template"] += " kept" if result.success else " broken"  # a word for screen readers
            meta = result.expectation_config.meta
            row += [[meta[key]] for key in ADDED_COLUMNS.values()]  # a cell is a list of texts
            return rows

        return render_extended_rows
