"""Emits lineage, as OpenLineage events, for runs of the ingest and for every other job.

With the setting `lineage_url` empty, nothing is emitted and nothing is looked up.
"""

from pipelines.lineage._emit import emits_lineage

__all__ = ["emits_lineage"]
