"""Finds which stages have work, before Spark is started for them: `python -m pipelines discover`. No Spark."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog

from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.settings import Settings
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.publish import finish_committed_runs
from pipelines.populate.ids_news import queues_lag
from pipelines.spark.conf import java_options

INGEST, POPULATE = "ingest", "populate"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Discovered:
    """The number and size of new segments, and the stages that must follow."""

    segments: int  # segments in the archive that are not in the lake
    bytes: int  # size of those segments
    next: list[str]  # ["ingest"] (audit, publish and populate follow it), ["populate"], or [] if nothing must follow
    java_options: str  # JVM options for an ingest of this size

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def discover(
    catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None, dry_run: bool = False
) -> Discovered:
    """Compare the archive with `ingested_segments` and, if nothing is new, the queues with the lake; return the stages to follow.

    With `dry_run`, the result names no stage; the stages that would follow are only logged.
    """
    # A run that crashed during its publication is already committed. If nothing is new, no later stage finishes it.
    finish_committed_runs(catalog)
    new_count = 0
    new_bytes = 0
    for segment in new_segments(catalog, Archive(settings.archive, settings.s3), interval):
        new_count += 1
        new_bytes += segment.size
    next_stages: list[str] = []
    if new_count:
        next_stages = [INGEST]  # populate follows an ingest anyway, so the queues need not be compared
    elif queues_lag(catalog, settings, now):
        next_stages = [POPULATE]
    log.info(
        "next stages determined",
        new_segments=new_count,
        new_bytes=new_bytes,
        next_stages=next_stages,
        dry_run=dry_run,
    )
    return Discovered(new_count, new_bytes, [] if dry_run else next_stages, java_options(new_bytes))
