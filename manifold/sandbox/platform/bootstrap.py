"""The first start of a fresh home: creates the tables, and marks the empty queues as loaded, as no entry can be missing.

The queues also have no ended entries to forget, so that a first run starts no Spark for that.
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
    """Whether archive and journal are empty. Call it before the recorder starts."""
    journals = settings.home / "journal"
    return not any(journals.glob("*/*.journal")) and not _has_segments(settings.archive)


def prepare(settings: Settings, *, fresh: bool, given_up: Event) -> None:
    """Create missing tables. In a `fresh` home with empty tables, mark the queues as loaded.

    Waits for Redis until `given_up` is set.

    Raises:
        redis.RedisError: Redis did not answer until then.
    """
    catalog = open_catalog(settings)
    ensure_tables(catalog)
    if fresh and _empty(catalog):
        patient = Retrying(
            retry=retry_if_exception_type(redis.RedisError),
            wait=wait_fixed(0.2),
            stop=stop_when_event_set(given_up),
            reraise=True,
        )
        patient(_mark_loaded, settings, catalog.load_table(OUTCOMES.identifier).current_snapshot())


def _has_segments(archive: str) -> bool:
    system, root = fs.FileSystem.from_uri(archive)
    for stream in Stream:
        selector = fs.FileSelector(f"{root}/{stream}", allow_not_found=True, recursive=True)
        if any(info.is_file and not info.base_name.startswith(".") for info in system.get_file_info(selector)):
            return True
    return False


def _empty(catalog: Catalog) -> bool:
    snapshots = (catalog.load_table(table.identifier).current_snapshot() for table in TABLES)
    return all(s is None or s.summary is None or (s.summary["total-records"] or "0") == "0" for s in snapshots)


def _mark_loaded(settings: Settings, outcomes: Snapshot | None) -> None:
    with connect(settings.redis) as client:
        if outcomes is not None:  # an empty table, of which nothing is left to prune
            client.set(keys.DONE_PRUNED, outcomes.snapshot_id, nx=True)
        for mark in keys.loaded_marks(of_cluster=split_redis_url(settings.redis)[1]):
            client.set(mark, wall_clock_ms(), nx=True)
