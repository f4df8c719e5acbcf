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

TABLES_READ = (ECQ_INDEX, ECQ_STATE)
AROUND_LOADING = timedelta(minutes=10)  # after the queues were loaded; direct enqueue may have missed messages until then
IS_REWIND = where(EqualTo, "kind", StateKind.REWOUND.value)


@dataclass(frozen=True, slots=True)
class Added:
    """The rows of index and state that were added since the last populate that Redis remembers, or all rows."""

    index: SnapshotRange
    state: SnapshotRange

    @property
    def is_everything(self) -> bool:
        """Whether the ranges have all rows, so that all queues must be loaded."""
        return self.index.start is None or self.state.start is None


def unpopulated(redis: Redis, catalog: Catalog, *, everything: bool = False) -> Added:
    """The rows that were added to index and state since the last populate; with `everything`, all rows."""
    index, state = (range_since(catalog, table, None if everything else _last_populated(redis, table)) for table in TABLES_READ)
    return Added(index, state)


def remember(redis: Redis, catalog: Catalog, *, settled: datetime) -> None:
    """Record in Redis that the queues have all rows that were in the lake at `settled`.

    Later rows are offered again by the next populate, because Redis may still lose its latest writes.
    """
    for table in TABLES_READ:
        snapshot_id = newest_before(catalog, table, settled)
        if snapshot_id is not None:
            redis.set(keys.populated(table.name), snapshot_id)


def is_behind(redis: Redis, catalog: Catalog) -> bool:
    """Whether compacted queues must be populated."""
    return has_rows(catalog, unpopulated(redis, catalog), loaded_at(redis))


def loaded_at(redis: Redis) -> datetime | None:
    """The instant at which the queues were loaded; None if they are not loaded."""
    loaded_ms = redis.get(keys.LOADED)
    try:
        return None if loaded_ms is None else datetime.fromtimestamp(int(loaded_ms) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def _last_populated(redis: Redis, table: Table) -> int | None:
    """The id of the table's snapshot up to which the queues were populated; None if Redis does not know."""
    snapshot_id = redis.get(keys.populated(table.name))
    return None if snapshot_id is None else int(snapshot_id)


def _may_be_missing(since: datetime | None) -> BooleanExpression:
    """Filter for messages that may be missing from the queues, which were loaded at `since`."""
    not_applied = where(EqualTo, "applied", False)
    return not_applied if since is None else Or(not_applied, where(LessThanOrEqual, "ts", since + AROUND_LOADING))


def has_rows(catalog: Catalog, added: Added, since: datetime | None) -> bool:
    """Whether `added` may have rows for which a queue must be loaded. `since` is the instant at which the queues were loaded."""
    if added.is_everything:
        return bool(added.index.rows)
    return bool(added.index.max_rows(catalog, _may_be_missing(since)) or added.state.max_rows(catalog, IS_REWIND))
