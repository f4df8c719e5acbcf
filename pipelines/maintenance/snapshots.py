"""Decides which snapshots of the tables are kept: by age, and by count where runs follow each other quickly. No Spark.

Every commit writes the metadata of a table anew, with an item for each snapshot: a stream that commits every half minute would
write more and more of it. Here snapshots are removed from the metadata alone; garbage collection removes their files as files
that no snapshot knows.
"""

from datetime import UTC, datetime, timedelta

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table as IcebergTable

from manifold.contracts.tables import SEGMENTS, Table
from manifold.lake.catalog import tables_of
from manifold.lake.commits import patiently
from manifold.settings import Settings
from pipelines.ingest.branches import RUN_ID, ancestors, properties_of
from pipelines.ingest.publish import unfinished
from pipelines.maintenance.garbage_days import carry_over
from pipelines.maintenance.garbage_plan import Version, old_versions

READING = timedelta(hours=1)  # whoever began to read so lately can finish, however many snapshots there are

log = structlog.get_logger(__name__)


def expire_by_count(catalog: Catalog, settings: Settings, *, now: datetime) -> dict[str, int]:
    """By table, how many snapshots went from its metadata; those that runs still need stay."""
    removed: dict[str, int] = {}
    carry_over(catalog)
    # The commit point's table first: a run whose snapshot has gone from it can no more be published, and rely on others that go.
    for table in sorted(tables_of(catalog), key=lambda table: table is not SEGMENTS):
        removed[table.name] = _expire(catalog, settings, table, now)
    if any(removed.values()):
        log.info("old snapshots are forgotten", **removed)
    return removed


@patiently
def _expire(catalog: Catalog, settings: Settings, table: Table, now: datetime) -> int:
    needed = needed_runs(catalog)
    loaded = catalog.load_table(table.identifier)
    old = old_snapshots(loaded, needed, cut_of(loaded, settings, now))
    if old:
        loaded.maintenance.expire_snapshots().by_ids(sorted(old)).commit()
    return len(old)


def needed_runs(catalog: Catalog) -> set[str]:
    """The runs that count and may not be in every main."""
    return {properties_of(s)[RUN_ID] for s in unfinished(catalog.load_table(SEGMENTS.identifier))}


def cut_of(table: IcebergTable, settings: Settings, now: datetime) -> datetime:
    """Before this, snapshots can go: past their retention, or more than `snapshot_max` and not being read any more."""
    by_age = now - timedelta(days=settings.snapshot_retention_days)
    newest = [made_at(snapshot.timestamp_ms) for _, snapshot in zip(range(settings.snapshot_max), ancestors(table), strict=False)]
    if len(newest) < settings.snapshot_max:
        return by_age
    return max(by_age, min(newest[-1], now - READING))


def old_snapshots(table: IcebergTable, needed: set[str], cut: datetime) -> set[int]:
    """Those that can go; what runs have written that are `needed` (by run id) stays, with main's history down to it."""
    versions = [Version(s.snapshot_id, s.parent_snapshot_id, made_at(s.timestamp_ms)) for s in table.snapshots()]
    main = table.current_snapshot()
    if main is None:
        return set()
    keep = {s.snapshot_id for s in table.snapshots() if properties_of(s).get(RUN_ID) in needed}
    heads = {ref.snapshot_id for ref in table.refs().values()}
    return old_versions(versions, heads, main.snapshot_id, keep=keep, cut=cut)


def made_at(timestamp_ms: int) -> datetime:
    """The instant that a snapshot's timestamp names."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
