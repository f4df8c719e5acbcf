"""The first start of a fresh home: creates the tables, and marks the queues as loaded.

Empty queues are complete if nothing was ever recorded. They have no ended entries to prune either, so the first pipeline run need
not start Spark for that.
"""

from threading import Event

import pyarrow.fs as fs
import redis
from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Snapshot
from tenacity import Retrying, retry_if_exception_type, stop_when_event_set, wait_fixed

from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.redis_url import split_redis_url
from manifold.contracts.seq import wall_clock_ms
from manifold.contracts.tables import OUTCOMES, TABLES
from manifold.lake.catalog import ensure_tables, open_catalog
from manifold.runtime.redis import connect
from manifold.settings import Settings


def nothing_recorded(settings: Settings) -> bool:
    """Whether archive and journals are empty. Call it before the recorder starts."""
    has_journal = any((settings.home / "journal").glob("*/*.journal"))
    return not has_journal and not _has_segments(settings.archive)


def prepare(settings: Settings, *, fresh: bool, given_up: Event) -> None:
    """Create missing tables. In a `fresh` home, where nothing was recorded, mark the queues as loaded if all tables are empty.

    Waits for Redis until `given_up` is set.

    Raises:
        redis.RedisError: Redis had not answered when `given_up` was set.
    """
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    if fresh and _are_tables_empty(catalog):  # otherwise Redis has the marks from before, or the queues need a rebuild
        retry = Retrying(
            retry=retry_if_exception_type(redis.RedisError),
            wait=wait_fixed(0.2),
            stop=stop_when_event_set(given_up),
            reraise=True,
        )
        outcomes_snapshot = catalog.load_table(OUTCOMES.identifier).current_snapshot()
        retry(_mark_loaded, settings, outcomes_snapshot)


def _has_segments(archive: str) -> bool:
    """Whether the archive has a segment of any stream. Hidden files, which are still being written, do not count."""
    system, root = fs.FileSystem.from_uri(archive)
    for stream in Stream:
        selector = fs.FileSelector(f"{root}/{stream}", allow_not_found=True, recursive=True)
        for info in system.get_file_info(selector):
            if info.is_file and not info.base_name.startswith("."):
                return True
    return False


def _are_tables_empty(catalog: Catalog) -> bool:
    snapshots = (catalog.load_table(table.identifier).current_snapshot() for table in TABLES)
    return all(snapshot is None or _is_empty(snapshot) for snapshot in snapshots)


def _is_empty(snapshot: Snapshot) -> bool:
    """Whether a table has no rows in this snapshot. A snapshot that does not tell the number of rows counts as empty."""
    return snapshot.summary is None or (snapshot.summary["total-records"] or "0") == "0"


def _mark_loaded(settings: Settings, outcomes_snapshot: Snapshot | None) -> None:
    """Mark the queues as loaded, and as pruned of ended entries up to this snapshot of the outcomes table, which is empty.

    None: the table has no snapshot, so nothing is marked as pruned.
    """
    _, is_cluster = split_redis_url(settings.redis)
    with connect(settings.redis) as client:
        if outcomes_snapshot is not None:
            client.set(keys.DONE_PRUNED, outcomes_snapshot.snapshot_id, nx=True)
        for mark in keys.loaded_marks(of_cluster=is_cluster):
            client.set(mark, wall_clock_ms(), nx=True)
