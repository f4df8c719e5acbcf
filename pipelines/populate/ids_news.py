"""Reads what is new in the lake for the queues of vehicles since the last populate. No Spark."""

from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import where
from manifold.queues import Loader, Policy
from manifold.settings import Settings
from pipelines.populate import ecq_news
from pipelines.populate.snapshot_range import SnapshotRange, range_since

# When the queues forget ended entries: it is not urgent, and starting Spark for a few would cost more than it frees.
FORGET_ROWS, FORGET_AFTER = 100_000, timedelta(hours=1)


def unpopulated(redis: Redis, catalog: Catalog, *, everything: bool = False) -> tuple[SnapshotRange, SnapshotRange]:
    """Rows of ids and outcomes added since the last populate that Redis remembers; or all of both."""
    populated, pruned = (None if everything else _remembered(redis, key) for key in (keys.POPULATED, keys.DONE_PRUNED))
    return range_since(catalog, IDS, populated), range_since(catalog, OUTCOMES, pruned)


def is_behind(redis: Redis, catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether populate has work, or must report that the queues need a rebuild."""
    if not Loader(redis, Policy.of(settings)).is_loaded():
        return True
    ids, ended = unpopulated(redis, catalog)
    if ids.most(catalog, _wanted_since(now - timedelta(days=settings.retention_days))):
        return True
    return _should_forget_ended(catalog, ended, now) or ecq_news.is_behind(redis, catalog)


def _wanted_since(since: datetime) -> BooleanExpression:
    """Filter for entries accepted at or after `since` that direct enqueue did not bring into the queues."""
    return And(where(GreaterThanOrEqual, "ts", since), where(EqualTo, "applied", False))


def _should_forget_ended(catalog: Catalog, ended: SnapshotRange, now: datetime) -> bool:
    """Whether the queues should forget ended entries now: there are many, or some and `FORGET_AFTER` has passed."""
    if not ended.rows:
        return False
    if ended.start is None or ended.rows >= FORGET_ROWS:
        return True
    last = catalog.load_table(OUTCOMES.identifier).snapshot_by_id(ended.start)
    return last is None or now.timestamp() - last.timestamp_ms / 1000 >= FORGET_AFTER.total_seconds()


def _remembered(redis: Redis, key: str) -> int | None:
    snapshot_id = redis.get(key)
    return None if snapshot_id is None else int(snapshot_id)
