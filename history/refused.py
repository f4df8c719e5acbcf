"""Pages of the table `quarantine`, newest first, for rooms that may not import the archive."""

from archive.refusals import Asked, Page, Place, Refusal, page

__all__ = ["Asked", "Page", "Place", "Refusal", "page"]
