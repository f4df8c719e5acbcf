"""Emits lineage, as OpenLineage events, for runs of the ingest and for every other job.

If the setting `lineage_url` is empty, no event is emitted, and no table is read for lineage.
"""

from pipelines.lineage._emit import emits_lineage

__all__ = ["emits_lineage"]
