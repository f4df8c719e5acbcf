"""Configures Great Expectations' Data Docs of a run: the library's pages, with the severity and reason of each rule added."""

from pathlib import Path
from typing import Any

from great_expectations.render.renderer.site_builder import DefaultSiteIndexBuilder
from great_expectations.render.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader

from expectations._compat import RulesTable
from manifold.lake.reports import STYLE

SITE = "site"


class NoIndex(DefaultSiteIndexBuilder):  # type: ignore[misc]  # the library is read without its types
    """An index builder that does nothing. The library's own would remove the pages of runs that this process does not know."""

    def build(self, *_: object, **__: object) -> tuple[None, None]:
        """Do nothing."""
        return None, None


class PageView(DefaultJinjaPageView):  # type: ignore[misc]
    """Renders the library's pages with Manifold's outer template: without scripts, and with the style sheet of the reports."""

    def __init__(self, **directories: Any) -> None:
        super().__init__(**directories)
        self.env.loader = ChoiceLoader([PackageLoader("expectations", "pages/docs"), self.env.loader])
        self.env.globals["style"] = STYLE


def site_config(folder: Path) -> dict[str, Any]:
    """The configuration for a data context that writes its Data Docs to `folder`."""
    table = {"class_name": RulesTable.__name__, "module_name": RulesTable.__module__}
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
