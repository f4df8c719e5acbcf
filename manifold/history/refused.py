"""Pages of the table `quarantine`, newest first, for packages that may not import the archive."""

from manifold.archive.refusals import Cursor, Page, Refusal, RefusalFilter, page

__all__ = ["Cursor", "Page", "Refusal", "RefusalFilter", "page"]
