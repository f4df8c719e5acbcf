"""Decides which snapshots of the tables are kept: by age, and by count where runs follow each other quickly. No Spark.

Every commit rewrites the metadata of a table, with an item for each snapshot: a stream that commits every half minute would
write more and more of it. Here snapshots are removed from the metadata alone; garbage collection removes their files as
orphans.
"""

from datetime import UTC, datetime, timedelta
from itertools import islice

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import tables_of
from manifold.lake.commits import retry_conflicts
from manifold.settings import Settings
from pipelines.ingest.branches import RUN_ID, ancestors, properties_of
from pipelines.ingest.publish import unfinished
from pipelines.maintenance.garbage_days import carry_over
from pipelines.maintenance.garbage_plan import Version, old_versions

READ_GRACE = timedelta(hours=1)  # readers that began this recently can finish, however many snapshots there are

log = structlog.get_logger(__name__)


def expire_by_count(catalog: Catalog, settings: Settings, *, now: datetime) -> dict[str, int]:
    """Remove snapshots that no run needs from each table's metadata; return how many by table."""
    removed: dict[str, int] = {}
    carry_over(catalog)
    # The ledger first: a run whose base there is gone can no longer be published, so nothing refers to what is expired next.
    for table in sorted(tables_of(catalog), key=lambda table: table is not SEGMENTS):
        removed[table.name] = _expire(catalog, settings, table, now)
    if any(removed.values()):
        log.info("old snapshots expired", **removed)
    return removed


@retry_conflicts
def _expire(catalog: Catalog, settings: Settings, table: Table, now: datetime) -> int:
    needed = needed_runs(catalog)
    loaded = catalog.load_table(table.identifier)
    old = old_snapshots(loaded, needed, cut_of(loaded, settings, now))
    if old:
        loaded.maintenance.expire_snapshots().by_ids(sorted(old)).commit()
    return len(old)


def needed_runs(catalog: Catalog) -> set[str]:
    """Ids of the committed runs that may be missing from some main."""
    return {properties_of(s)[RUN_ID] for s in unfinished(catalog.load_table(SEGMENTS.identifier))}


def cut_of(table: IcebergTable, settings: Settings, now: datetime) -> datetime:
    """The instant before which snapshots can go: past their retention, or beyond `snapshot_max` and no longer being read."""
    by_age = now - timedelta(days=settings.snapshot_retention_days)
    newest = [made_at(snapshot.timestamp_ms) for snapshot in islice(ancestors(table), settings.snapshot_max)]
    if len(newest) < settings.snapshot_max:
        return by_age
    return max(by_age, min(newest[-1], now - READ_GRACE))


def old_snapshots(table: IcebergTable, needed: set[str], cut: datetime) -> set[int]:
    """Snapshots that can go; those written by the `needed` runs (ids) stay, with main's history down to them."""
    versions = [Version(s.snapshot_id, s.parent_snapshot_id, made_at(s.timestamp_ms)) for s in table.snapshots()]
    main = table.current_snapshot()
    if main is None:
        return set()
    keep = {s.snapshot_id for s in table.snapshots() if properties_of(s).get(RUN_ID) in needed}
    heads = {ref.snapshot_id for ref in table.refs().values()}
    return old_versions(versions, heads, main.snapshot_id, keep=keep, cut=cut)


def made_at(timestamp_ms: int) -> datetime:
    """A snapshot's timestamp in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
