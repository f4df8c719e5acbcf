"""Pages of the table `quarantine`, newest first. Packages that may not import `manifold.archive` import them from here."""

from manifold.archive.refusals import Cursor, Page, Refusal, RefusalFilter, page

__all__ = ["Cursor", "Page", "Refusal", "RefusalFilter", "page"]
