"""Finds the entries and outcomes that were added to the lake since the last populate. No Spark."""

from datetime import datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from redis import Redis
from redis.exceptions import RedisError

from manifold.contracts import keys
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import where
from manifold.queues import Loader, Policy
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.populate import ecq_news
from pipelines.populate.snapshot_range import SnapshotRange, range_since

# The queues forget ended entries once there are so many of them, or after this time. It is not urgent, and for a few entries,
# starting Spark would cost more than forgetting them frees.
FORGET_ROWS = 100_000
FORGET_AFTER = timedelta(hours=1)

log = structlog.get_logger(__name__)


def added_since_populate(redis: Redis, catalog: Catalog, *, everything: bool = False) -> tuple[SnapshotRange, SnapshotRange]:
    """The entries added since the last populate, and the outcomes added since the queues last forgot ended entries.

    Both are all rows of their tables with `everything`, or if Redis has no record of the last time.
    """
    if everything:
        return range_since(catalog, IDS, None), range_since(catalog, OUTCOMES, None)
    populated_up_to = _snapshot_id(redis, keys.POPULATED)
    forgotten_up_to = _snapshot_id(redis, keys.DONE_PRUNED)
    return range_since(catalog, IDS, populated_up_to), range_since(catalog, OUTCOMES, forgotten_up_to)


def queues_lag(catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether the queues lag behind the lake, so that populate must run.

    True if Redis is unavailable: nothing is known then, and populate is the job that is retried until Redis answers.
    """
    try:
        return is_behind(connect(settings.redis), catalog, settings, now)
    except RedisError as exc:
        log.warning("redis unavailable; scheduling populate", reason=str(exc))
        return True


def is_behind(redis: Redis, catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether populate has work, or must report that the queues need a rebuild because they are not loaded."""
    if not Loader(redis, Policy.of(settings)).is_loaded():
        return True
    ids, ended = added_since_populate(redis, catalog)
    if ids.max_rows(catalog, _must_be_offered(now - timedelta(days=settings.retention_days))):
        return True
    return _should_forget_ended(catalog, ended, now) or ecq_news.is_behind(redis, catalog)


def _must_be_offered(since: datetime) -> BooleanExpression:
    """Filter for entries that were accepted at or after `since` and not enqueued directly."""
    return And(where(GreaterThanOrEqual, "ts", since), where(EqualTo, "applied", False))


def _should_forget_ended(catalog: Catalog, ended: SnapshotRange, now: datetime) -> bool:
    """Whether the queues should forget the entries in `ended` now.

    They wait until there are `FORGET_ROWS` of them, or until `FORGET_AFTER` has passed since the queues last forgot entries. If
    that time is not known, they do not wait.
    """
    if not ended.rows:
        return False
    if ended.start is None or ended.rows >= FORGET_ROWS:
        return True
    last_forgotten = catalog.load_table(OUTCOMES.identifier).snapshot_by_id(ended.start)
    if last_forgotten is None:
        return True
    age_s = now.timestamp() - last_forgotten.timestamp_ms / 1000
    return age_s >= FORGET_AFTER.total_seconds()


def _snapshot_id(redis: Redis, key: str) -> int | None:
    """The snapshot id that Redis has recorded under this key; None if it has none."""
    snapshot_id = redis.get(key)
    return None if snapshot_id is None else int(snapshot_id)
