"""Finds what is to be populated and, if it is little, populates it with PyIceberg and PyArrow: Spark would start slower."""

from datetime import datetime, timedelta

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThanOrEqual
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.seq import datetime_of
from manifold.contracts.tables import IDS, OUTCOMES
from manifold.lake.catalog import where
from manifold.queues import Loader, Policy
from manifold.settings import Settings
from pipelines.populate import ecq_news
from pipelines.populate.snapshot_range import ALL_ROWS, SnapshotRange, range_since
from pipelines.spark.needed import NeedsSpark

FEW = 100_000  # rows that are read here; more are Spark's
FEW_TRIGGERS = 1000  # seqs that a filter can name one by one
KEYS = ["vin", "seq"]


def wanted_since(since: datetime, *, everything: bool = False) -> BooleanExpression:
    """Entries accepted at or after `since`: those that direct enqueue did not bring into the queues, or all of them."""
    young = where(GreaterThanOrEqual, "ts", since)
    return young if everything else And(young, where(EqualTo, "applied", False))


def unpopulated(redis: Redis, catalog: Catalog, *, everything: bool = False) -> tuple[SnapshotRange, SnapshotRange]:
    """What ids and outcomes have that was not looked at since Redis remembers; or all of both."""
    populated, pruned = (None if everything else _remembered(redis, key) for key in (keys.POPULATED, keys.DONE_PRUNED))
    return range_since(catalog, IDS, populated), range_since(catalog, OUTCOMES, pruned)


def is_behind(redis: Redis, catalog: Catalog, settings: Settings, now: datetime) -> bool:
    """Whether populate has anything to do, or to say: queues that are not loaded need a rebuild."""
    if not Loader(redis, Policy.of(settings)).is_loaded():
        return True
    ids, ended = unpopulated(redis, catalog)
    if ended.rows or ids.most(catalog, wanted_since(now - timedelta(days=settings.retention_days))):
        return True
    return ecq_news.is_behind(redis, catalog)


def _remembered(redis: Redis, key: str) -> int | None:
    snapshot_id = redis.get(key)
    return None if snapshot_id is None else int(snapshot_id)


def pending_by_arrow(catalog: Catalog, ids: SnapshotRange, outcomes: int, wanted: BooleanExpression) -> pa.Table:
    """The wanted entries of `ids` that have no outcome in the snapshot `outcomes`: vin, seq, request_id, data_id.

    Raises:
        NeedsSpark: they may be too many.
    """
    _require_few(catalog, ids, wanted)
    entries = ids.read(catalog, wanted, ("vin", "seq", "request_id", "data_id"))
    seqs = set(entries["seq"].to_pylist())
    if not seqs:
        return entries
    if len(seqs) > FEW_TRIGGERS:
        raise NeedsSpark(f"entries of {len(seqs)} triggers are to be looked at")
    days = And(
        where(GreaterThanOrEqual, "accepted_at", datetime_of(min(seqs))),
        where(LessThanOrEqual, "accepted_at", datetime_of(max(seqs))),
    )
    scan = catalog.load_table(OUTCOMES.identifier).scan(
        And(days, In(term="seq", literals=seqs)), tuple(KEYS), snapshot_id=outcomes
    )
    same = pa.schema([(key, entries.schema.field(key).type) for key in KEYS])  # without rows, PyIceberg gives another string type
    return entries.join(scan.to_arrow().select(KEYS).cast(same), keys=KEYS, join_type="left anti")


def ended_by_arrow(catalog: Catalog, ended: SnapshotRange, since: datetime | None) -> pa.Table:
    """(vin, seq) of the outcomes that were added, or of those since an instant.

    Raises:
        NeedsSpark: they may be too many.
    """
    wanted = ALL_ROWS if since is None else where(GreaterThanOrEqual, "ended_at", since)
    _require_few(catalog, ended, wanted)
    return ended.read(catalog, wanted, KEYS)


def _require_few(catalog: Catalog, added: SnapshotRange, wanted: BooleanExpression) -> None:
    rows = added.most(catalog, wanted)
    if rows > FEW:
        raise NeedsSpark(f"{rows} rows of {added.table.name} are to be looked at")
