"""Finds the rows of compacted queues that were added to the lake since the last populate. No Spark."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression, EqualTo, LessThanOrEqual, Or
from redis import Redis

from manifold.contracts import keys
from manifold.contracts.tables import ECQ_INDEX, ECQ_STATE, StateKind, Table
from manifold.lake.catalog import where
from pipelines.populate.snapshot_range import SnapshotRange, newest_before, range_since

MISSED_AFTER_LOADING = timedelta(minutes=10)  # for so long after the queues were loaded, direct enqueue may have missed messages
IS_REWIND = where(EqualTo, "kind", StateKind.REWOUND.value)


@dataclass(frozen=True, slots=True)
class Added:
    """The rows of `ecq_index` and `ecq_state` that were added since the last populate.

    If Redis has no record of a last populate of a table, or its snapshot has expired, the table's range has all rows.
    """

    index: SnapshotRange
    state: SnapshotRange

    @property
    def is_everything(self) -> bool:
        """Whether one of the ranges has all rows of its table. Then all queues must be loaded."""
        return self.index.start is None or self.state.start is None


def added_since_populate(redis: Redis, catalog: Catalog, *, everything: bool = False) -> Added:
    """The rows that were added to index and state since the last populate; with `everything`, all rows."""
    if everything:
        return Added(range_since(catalog, ECQ_INDEX, None), range_since(catalog, ECQ_STATE, None))
    index = range_since(catalog, ECQ_INDEX, _last_populated(redis, ECQ_INDEX))
    state = range_since(catalog, ECQ_STATE, _last_populated(redis, ECQ_STATE))
    return Added(index, state)


def record_populated(redis: Redis, catalog: Catalog, *, up_to: datetime) -> None:
    """Record in Redis that the queues have all rows that were in the lake at the instant `up_to`.

    Rows that were added later are offered again by the next populate, because Redis may still lose its latest writes. If a
    table has no snapshot that old, its record stays as it is.
    """
    for table in (ECQ_INDEX, ECQ_STATE):
        snapshot_id = newest_before(catalog, table, up_to)
        if snapshot_id is not None:
            redis.set(keys.populated(table.name), snapshot_id)


def is_behind(redis: Redis, catalog: Catalog) -> bool:
    """Whether compacted queues must be populated."""
    return may_require_loading(catalog, added_since_populate(redis, catalog), queues_loaded_at(redis))


def queues_loaded_at(redis: Redis) -> datetime | None:
    """The instant at which the queues were loaded; None if they are not loaded, or if Redis holds another value under the key."""
    loaded_ms = redis.get(keys.LOADED)
    if loaded_ms is None:
        return None
    try:
        return datetime.fromtimestamp(int(loaded_ms) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def _last_populated(redis: Redis, table: Table) -> int | None:
    """The id of the table's snapshot up to which the queues were populated; None if Redis has no record."""
    snapshot_id = redis.get(keys.populated(table.name))
    return None if snapshot_id is None else int(snapshot_id)


def _may_be_missing(loaded_at: datetime | None) -> BooleanExpression:
    """Filter for messages that may be missing from the queues, which were loaded at `loaded_at`.

    Messages from before that instant, or shortly after it, are included even if they were enqueued directly: perhaps into
    earlier queues, which Redis then lost.

    None means that there is no instant to compare with, so only messages that were not enqueued directly are selected. Every
    populate first checks that Redis has the key `LOADED`, and otherwise asks for a rebuild, which loads all queues without this
    filter. So None comes here only if Redis lost the key since that check, and then the rebuild brings the other messages; or if
    the key holds no number, which Manifold never writes.
    """
    not_applied = where(EqualTo, "applied", False)
    if loaded_at is None:
        return not_applied
    return Or(not_applied, where(LessThanOrEqual, "ts", loaded_at + MISSED_AFTER_LOADING))


def may_require_loading(catalog: Catalog, added: Added, loaded_at: datetime | None) -> bool:
    """Whether `added` may have rows for which a queue must be loaded: messages that may be missing from it, or rewinds.

    True also for some ranges without such rows, because only the metadata of files is read. The queues were loaded at
    `loaded_at`; for None see `_may_be_missing`.
    """
    if added.is_everything:
        return bool(added.index.rows)  # without any message in the lake, there is nothing to queue
    max_messages = added.index.max_rows(catalog, _may_be_missing(loaded_at))
    return bool(max_messages or added.state.max_rows(catalog, IS_REWIND))
