"""Finds out which stages have work, before anything is started for them: `python -m pipelines discover`. No Spark."""

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
from pipelines.ingest.publish import finish
from pipelines.populate.ids_news import is_behind
from pipelines.spark.conf import java_options

INGEST, POPULATE = "ingest", "populate"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Discovered:
    """The result: what is new, and which stages have to follow."""

    segments: int  # of the archive that are not in the lake
    bytes: int  # of them
    next: list[str]  # ingest (then audit, publish and populate), only populate, or nothing
    java_options: str  # what suits a job of this size

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def discover(
    catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None, dry_run: bool = False
) -> Discovered:
    """List the archive against `ingested_segments`, and see whether the queues lag behind the lake; `dry_run`: only say it."""
    finish(catalog)  # a run that died half published counts, and nothing else would bring it to an end if nothing is new
    new = size = 0
    for segment in new_segments(catalog, Archive(settings.archive, settings.s3), interval):
        new, size = new + 1, size + segment.size
    following = [INGEST] if new else [POPULATE] if queues_lag(catalog, settings, now) else []
    found = Discovered(new, size, [] if dry_run else following, java_options(size))
    log.info("discovered", **asdict(found), would_follow=following)
    return found


def queues_lag(catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether the queues lag behind the lake, so that populate has to follow."""
    try:
        return is_behind(connect(settings.redis), catalog, settings, now)
    except RedisError as exc:
        log.warning("Redis does not say what it has; populate will see", reason=str(exc))
        return True
