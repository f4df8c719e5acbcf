"""Finds which stages have work, before anything is started for them: `python -m pipelines discover`. No Spark."""

import json
from dataclasses import asdict, dataclass
from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog
from redis.exceptions import RedisError

from manifold.archive.segment import Interval
from manifold.archive.store import Archive
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.publish import finish_committed_runs
from pipelines.populate.ids_news import is_behind
from pipelines.spark.conf import java_options

INGEST, POPULATE = "ingest", "populate"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Discovered:
    """What is new, and which stages must follow."""

    segments: int  # in the archive, not in the lake
    bytes: int  # size of those segments
    next: list[str]  # ingest (then audit, publish and populate), populate alone, or nothing
    java_options: str  # for a job of this size

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def discover(
    catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None, dry_run: bool = False
) -> Discovered:
    """Compare the archive with `ingested_segments`, and the queues with the lake; with `dry_run`, no stage follows."""
    # A run that crashed during its publication is committed; if nothing is new, no other step finishes it.
    finish_committed_runs(catalog)
    new = size = 0
    for segment in new_segments(catalog, Archive(settings.archive, settings.s3), interval):
        new, size = new + 1, size + segment.size
    following: list[str] = []
    if new:
        following = [INGEST]
    elif queues_lag(catalog, settings, now):
        following = [POPULATE]
    found = Discovered(new, size, [] if dry_run else following, java_options(size))
    log.info("discovery done", **asdict(found), would_follow=following)
    return found


def queues_lag(catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether the queues lag behind the lake, so that populate must run; True if Redis is unavailable."""
    try:
        return is_behind(connect(settings.redis), catalog, settings, now)
    except RedisError as exc:
        log.warning("redis unavailable; scheduling populate", reason=str(exc))
        return True
