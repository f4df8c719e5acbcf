"""Great Expectations' Data Docs of one run: the library's sentences, each with our severity and reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from great_expectations.render.renderer.content_block import ValidationResultsTableContentBlockRenderer
from great_expectations.render.renderer.site_builder import DefaultSiteIndexBuilder
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader

from manifold.lake.reports import STYLE

SITE = "site"
ADDED = {"Severity": "severity", "Reason": "reason"}  # headers of columns, and where their values stand in the meta of a rule


class NoIndex(DefaultSiteIndexBuilder):  # type: ignore[misc]  # the library is read without its types
    """An index builder that does nothing. The library's removes the pages of runs that this process does not know."""

    def build(self, *_: object, **__: object) -> tuple[None, None]:
        """Do nothing."""
        return None, None


class RulesTable(ValidationResultsTableContentBlockRenderer):  # type: ignore[misc]
    """The table of a page, with severity and reason of each rule. The library's `meta_properties_to_render` ends in its error."""

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
            # The icon alone would say nothing to a screen reader.
            cells[0][0].string_template["template"] += " kept" if result.success else " broken"
            meta = result.expectation_config.meta
            cells[0] += [[meta[name]] for name in ADDED.values()]
            return cells

        return row


class PageView(DefaultJinjaPageView):  # type: ignore[misc]
    """A page of the library with our frame: it has no script, and takes its style from beside the reports."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env.loader = ChoiceLoader([PackageLoader("expectations", "pages/docs"), self.env.loader])
        self.env.globals["style"] = STYLE


def site_config(folder: Path) -> dict[str, Any]:
    """The configuration of the site in `folder` for a data context."""
    table = {"class_name": RulesTable.__name__, "module_name": __name__}
    section = {"class_name": "ValidationResultsColumnSectionRenderer", "table_renderer": table}
    page = {"class_name": "ValidationResultsPageRenderer", "column_section_renderer": section}
    view = {"class_name": PageView.__name__, "module_name": __name__}
    return {
        "class_name": "SiteBuilder",
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
        "site_index_builder": {"class_name": NoIndex.__name__, "module_name": __name__},
        "site_section_builders": {
            "expectations": {"view": view},
            "validations": {"renderer": page, "view": view},
            "profiling": "none",
        },
        "show_how_to_buttons": False,
    }
