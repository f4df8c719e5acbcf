"""What was refused, newest first: pages of the table `quarantine`, for whoever asks history and knows no archive."""

from archive.refusals import Asked, Page, Place, Refusal, page

__all__ = ["Asked", "Page", "Place", "Refusal", "page"]
