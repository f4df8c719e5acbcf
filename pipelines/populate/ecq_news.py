"""Reads what is new in the lake for compacted queues since the last populate. No Spark."""

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
AROUND_LOADING = timedelta(minutes=10)
REWOUND = where(EqualTo, "kind", StateKind.REWOUND.value)


@dataclass(frozen=True, slots=True)
class Added:
    """Rows of index and state added since the last populate that Redis remembers; or all of both."""

    index: SnapshotRange
    state: SnapshotRange

    @property
    def is_everything(self) -> bool:
        """Whether all queues must be loaded."""
        return self.index.start is None or self.state.start is None


def unpopulated(redis: Redis, catalog: Catalog, *, everything: bool = False) -> Added:
    """Rows added to index and state since the last populate."""
    return Added(*(range_since(catalog, table, None if everything else _remembered(redis, table)) for table in TABLES_READ))


def remember(redis: Redis, catalog: Catalog, *, settled: datetime) -> None:
    """Record that the queues have what was in the lake at `settled`: Redis may lose its last seconds, which are offered again."""
    for table in TABLES_READ:
        snapshot_id = newest_before(catalog, table, settled)
        if snapshot_id is not None:
            redis.set(keys.populated(table.name), snapshot_id)


def is_behind(redis: Redis, catalog: Catalog) -> bool:
    """Whether compacted queues must be populated."""
    return has_rows(catalog, unpopulated(redis, catalog), loaded_at(redis))


def loaded_at(redis: Redis) -> datetime | None:
    """When the queues were loaded; None if they are not."""
    loaded_ms = redis.get(keys.LOADED)
    try:
        return None if loaded_ms is None else datetime.fromtimestamp(int(loaded_ms) / 1000, UTC)
    except (ValueError, OverflowError):
        return None


def _remembered(redis: Redis, table: Table) -> int | None:
    snapshot_id = redis.get(keys.populated(table.name))
    return None if snapshot_id is None else int(snapshot_id)


def left_over(since: datetime | None) -> BooleanExpression:
    """Filter for messages that may be missing from the queues."""
    not_applied = where(EqualTo, "applied", False)
    return not_applied if since is None else Or(not_applied, where(LessThanOrEqual, "ts", since + AROUND_LOADING))


def has_rows(catalog: Catalog, added: Added, since: datetime | None) -> bool:
    """Whether any queue may have to be loaded. `since`: when the queues were loaded."""
    if added.is_everything:
        return bool(added.index.rows)
    return bool(added.index.most(catalog, left_over(since)) or added.state.most(catalog, REWOUND))
