"""Decides which snapshots of the tables are kept, by age and by count. No Spark.

Every commit rewrites the metadata of a table, which lists all snapshots. A stream commits every half minute, so its commits would
write more and more. `expire_by_count` removes snapshots from the metadata only; garbage collection removes their files as
orphans.
"""

from collections.abc import Iterable
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
from pipelines.maintenance.garbage_days import carry_over_closed_days
from pipelines.maintenance.garbage_plan import Version, old_versions

READ_GRACE = timedelta(hours=1)  # snapshots that were main's newest within this time are kept for readers, whatever the count

log = structlog.get_logger(__name__)


def expire_by_count(catalog: Catalog, settings: Settings, *, now: datetime) -> dict[str, int]:
    """Remove old snapshots from each table's metadata; return the number of removed snapshots by table."""
    removed: dict[str, int] = {}
    carry_over_closed_days(catalog)  # first, because it needs the snapshots that are expired below
    for table in ledger_first(tables_of(catalog)):
        removed[table.name] = _expire(catalog, settings, table, now)
    if any(removed.values()):
        log.info("old snapshots expired", snapshots_by_table=removed)
    return removed


def ledger_first(tables: Iterable[Table]) -> list[Table]:
    """Order the tables for expiring snapshots: `ingested_segments` first, the others as they come.

    Once the snapshot of the ledger on which a run began is expired, the run can no longer be published. So no run that can still
    be published needs the snapshots of the other tables that are expired afterwards.
    """
    return sorted(tables, key=lambda table: table is not SEGMENTS)


@retry_conflicts
def _expire(catalog: Catalog, settings: Settings, table: Table, now: datetime) -> int:
    """Remove the old snapshots from the metadata of one table; return their number."""
    needed_run_ids = unfinished_run_ids(catalog)
    loaded = catalog.load_table(table.identifier)
    old = old_snapshots(loaded, needed_run_ids, snapshot_cutoff(loaded, settings, now))
    if old:
        loaded.maintenance.expire_snapshots().by_ids(sorted(old)).commit()
    return len(old)


def unfinished_run_ids(catalog: Catalog) -> set[str]:
    """Ids of committed runs that may be missing from the main of some table."""
    ledger = catalog.load_table(SEGMENTS.identifier)
    return {properties_of(snapshot)[RUN_ID] for snapshot in unfinished(ledger)}


def snapshot_cutoff(table: IcebergTable, settings: Settings, now: datetime) -> datetime:
    """The instant before which snapshots may be expired.

    It is `now` minus their retention. If main has `snapshot_max` snapshots or more, it may be later: the time of the oldest of
    the newest `snapshot_max` snapshots, but at most `now - READ_GRACE`.
    """
    retention_cutoff = now - timedelta(days=settings.snapshot_retention_days)
    newest = [made_at(snapshot.timestamp_ms) for snapshot in islice(ancestors(table), settings.snapshot_max)]
    if len(newest) < settings.snapshot_max:
        return retention_cutoff
    count_cutoff = min(newest[-1], now - READ_GRACE)
    return max(retention_cutoff, count_cutoff)


def old_snapshots(table: IcebergTable, needed_run_ids: set[str], cutoff: datetime) -> set[int]:
    """Return the ids of the snapshots that may be expired.

    `needed_run_ids` has the ids of runs that are not finished. Snapshots that such a run wrote are kept, and so are their
    descendants on main. `cutoff` is the instant before which other snapshots are old.
    """
    main = table.current_snapshot()
    if main is None:
        return set()
    snapshots = table.snapshots()
    versions = [
        Version(snapshot.snapshot_id, snapshot.parent_snapshot_id, made_at(snapshot.timestamp_ms)) for snapshot in snapshots
    ]
    keep = {snapshot.snapshot_id for snapshot in snapshots if properties_of(snapshot).get(RUN_ID) in needed_run_ids}
    branch_heads = {ref.snapshot_id for ref in table.refs().values()}
    return old_versions(versions, branch_heads, main.snapshot_id, keep=keep, cutoff=cutoff)


def made_at(timestamp_ms: int) -> datetime:
    """Convert the timestamp of a snapshot into an instant in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
