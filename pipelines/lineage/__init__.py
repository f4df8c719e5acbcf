"""What came of what, for a catalog of lineage, in OpenLineage's events: of runs of the ingest, and of every other job.

With the setting `lineage_url` empty nobody is told, and nothing is looked up.
"""

from pipelines.lineage._emit import emits_lineage

__all__ = ["emits_lineage"]
