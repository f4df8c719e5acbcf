"""`manifold vin erase`: erases a vehicle from queues, archive and lake, and proves it. No Spark.

The steps have a fixed order, so that a message that moves on during an erasure is removed by a later step, and so that an erasure
that was killed can be repeated:

1. the vehicle's entries are removed from the queues, so that they are neither sent nor ended any more;
2. the recorders close their segments, so that every accepted message is in the archive;
3. the segments of the archive are rewritten, so that later readers get them without the vehicle;
4. the erasure waits for a limited time for runs that began before; runs that take longer are overtaken by step 5;
5. one run removes the rows from every table in one commit, and a second run drops the removed files' bounds from the manifests;
6. every earlier snapshot and branch is expired, with the files that only these reference; then data that dispatchers have loaded
   from the tables into Redis since step 1 is removed again;
7. everything is searched, because a recorder may have recorded an outcome since. If anything is found, the erasure starts over.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from redis import Redis

from manifold.archive.flush import flush
from manifold.archive.store import Archive
from manifold.contracts.errors import Permanent, Retryable
from manifold.contracts.seq import first_seq_at
from manifold.contracts.tables import ERASURES, SEGMENTS
from manifold.lake.catalog import ensure_tables, run_tables_of
from manifold.lake.commits import append_nothing, append_rows
from manifold.runtime.redis import connect
from manifold.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.erasure.archive import Rewritten, erase_from_archive
from pipelines.erasure.files import Found, expire_snapshots, find_in_files, remove_unreferenced
from pipelines.erasure.names import ErasedVehicle
from pipelines.erasure.queues import erase_data, erase_from_queues, find_in_redis
from pipelines.erasure.sealed import opener_of
from pipelines.erasure.search import TEXTS, drop_deleted_entries, erase_texts, find_removals
from pipelines.ingest.branches import BEGAN
from pipelines.ingest.delete_rows import remove_rows
from pipelines.ingest.erasing import erase_rows, lists_deleted
from pipelines.ingest.lease import check_lease, rewriting
from pipelines.ingest.ledger import Ledger
from pipelines.ingest.maintenance_run import MaintenanceRun, until_not_overtaken
from pipelines.ingest.publish import main_snapshots
from pipelines.lineage import emits_lineage
from pipelines.populate.lock import populate_lock

MAX_PASSES = 3
MAX_WAIT_FOR_RUNS_S = 900.0
RUN_CHECK_INTERVAL_S = 1.0
RECORDER_NOT_FLUSHED = "a recorder cannot be asked to close its open segments, which may name the vehicle; see `manifold status`"
# States of an erasure on record; `left`: the search has found places that still name the vehicle.
BEGUN, ERASED, LEFT = "begun", "erased", "left"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Erased:
    """The result of an erasure. It does not name the vehicle."""

    erasure_id: str
    accepted_before: datetime
    entries: int = 0  # entries and messages removed from the queues
    segments: int = 0  # rewritten segments of the archive
    messages: int = 0  # messages of these segments that were changed or removed
    rows: dict[str, int] = field(default_factory=dict)  # rows removed or changed, by table
    snapshots: int = 0  # expired snapshots
    files: int = 0  # removed files of the tables that no snapshot referenced
    searched: int = 0  # files of archive and warehouse that were searched in the end
    found: list[Found] = field(default_factory=list)  # places that still name the vehicle

    @property
    def proved(self) -> bool:
        """Whether the final search found no place that names the vehicle."""
        return not self.found

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self), default=str)


@emits_lineage("erase", reads=["archive", "queues"], writes=["archive", "queues"])
def erase_vehicle(settings: Settings, vin: str, *, why: str, wait_s: float, say: Callable[[str], object]) -> Erased:
    """Call `erase` for these settings, for everything accepted until now.

    Raises:
        LeaseHeld: another job is rewriting tables; nothing was erased.
    """
    catalog = await_catalog(settings)
    with rewriting(catalog, "erasure"):
        return erase(catalog, settings, vin, why=why, now=datetime.now(UTC), wait_s=wait_s, say=say)


def erase(
    catalog: Catalog,
    settings: Settings,
    vin: str,
    *,
    why: str,
    now: datetime,
    wait_s: float = MAX_WAIT_FOR_RUNS_S,
    say: Callable[[str], object] = lambda _: None,
    seal: Callable[[Settings], bool] = flush,
) -> Erased:
    """Erase the vehicle from everything accepted before `now`. A repeated call resumes after an interruption.

    `why` is recorded. `seal` makes recorders archive their open segments, and returns whether all of them did. `wait_s` bounds
    the wait for runs that began before the erasure. `say` is called with the name of each step as it begins.

    Raises:
        Permanent: `why` is empty, or names the vehicle.
        Retryable: a recorder cannot be told to close its segments, or another process holds a lock or has published a run; run it
            again.
        redis.RedisError: Redis is unavailable or refuses.
    """
    vehicle = ErasedVehicle(vin, first_seq_at(now), opener_of(settings))
    if not why.strip() or vehicle.is_named_in(why):
        raise Permanent("--why must say why, and must not name the vehicle: the record is kept")
    ensure_tables(catalog)
    erased = Erased(f"{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}", now)
    _record(catalog, erased, BEGUN, why)
    with connect(settings.redis) as redis, populate_lock(redis) as lock:
        for pass_number in range(MAX_PASSES):
            say("the queues")
            erased.entries += erase_from_queues(redis, settings, vehicle)
            if not seal(settings):
                raise Retryable(RECORDER_NOT_FLUSHED)
            # Recorders may have queued entries of messages that they had accepted before.
            erased.entries += erase_from_queues(redis, settings, vehicle)
            wait_for_runs_s = wait_s if pass_number == 0 else 0.0  # the first pass has waited for these runs, or overtaken them
            _erase_from_archive_and_tables(catalog, settings, vehicle, erased, wait_for_runs_s, say)
            erase_data(redis, vehicle)  # dispatchers may have loaded data from the tables since
            lock.require_held()
            say("searching every file")
            erased.found, erased.searched = search_all(catalog, settings, redis, vehicle)
            if erased.proved:
                break
    _record(catalog, erased, ERASED if erased.proved else LEFT, why)
    counts = {"erasure_id": erased.erasure_id, "rows_by_table": erased.rows, "archived_messages": erased.messages}
    if erased.proved:
        log.info("vehicle erased", **counts)
    else:
        log.warning("erasure incomplete: places still name the vehicle", **counts, places_that_name_the_vehicle=len(erased.found))
    return erased


def _erase_from_archive_and_tables(
    catalog: Catalog, settings: Settings, vehicle: ErasedVehicle, erased: Erased, wait_s: float, say: Callable[[str], object]
) -> None:
    """Erase the vehicle from archive and tables, including old snapshots, and add the counts to `erased`."""
    say("the archive")
    archive = Archive(settings.archive, settings.s3)
    began = datetime.now(UTC)
    rewritten = erase_from_archive(archive, vehicle)
    erased.segments += len(rewritten.segments)
    erased.messages += rewritten.messages
    say("runs that began before")
    _await_runs(catalog, datetime.now(UTC), wait_s)
    say("the tables")
    until_not_overtaken()(lambda: _remove_rows(catalog, vehicle, rewritten, began, erased))
    published = until_not_overtaken()(lambda: _publish_without_removed_files(catalog, began))
    check_lease(catalog)
    for table, column in TEXTS:
        erased.rows[table.name] = erased.rows.get(table.name, 0) + erase_texts(catalog, table, column, vehicle)
        drop_deleted_entries(catalog, table)
    for path in rewritten.unreadable:  # after the run that has removed them from the ledger
        archive.remove(path)
    say("snapshots and their files")
    erased.snapshots += expire_snapshots(catalog, published, began)
    erased.files += remove_unreferenced(catalog, settings, vehicle)


def search_all(catalog: Catalog, settings: Settings, redis: Redis, vehicle: ErasedVehicle) -> tuple[list[Found], int]:
    """Search files, archive and Redis for what was accepted before the erasure and names the vehicle.

    Return the places that name the vehicle, and the number of files searched.
    """
    archive = Archive(settings.archive, settings.s3)
    found, searched = find_in_files(catalog, settings, vehicle)
    in_archive = erase_from_archive(archive, vehicle, dry=True)
    found += [Found(path, "archive") for path in [*in_archive.segments, *in_archive.unreadable]]
    found += find_in_redis(redis, vehicle)
    return sorted(found), searched + in_archive.files


def _await_runs(catalog: Catalog, before: datetime, wait_s: float) -> None:
    """Wait at most `wait_s` until every run that began before `before` has ended. The erasure overtakes runs that take longer."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        properties = catalog.load_table(SEGMENTS.identifier).properties
        starts = [datetime.fromisoformat(text) for name, text in properties.items() if name.startswith(BEGAN)]
        if all(start >= before for start in starts):
            return
        time.sleep(RUN_CHECK_INTERVAL_S)


def _remove_rows(catalog: Catalog, vehicle: ErasedVehicle, rewritten: Rewritten, now: datetime, erased: Erased) -> None:
    """Publish a run that removes the rows from every table, and the unreadable files from the ledger.

    The run is published even if no row is found, so that runs that began before are overtaken, and start again with the archive
    as it is now.
    """
    ledger = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, ledger)
    removals = find_removals(catalog, vehicle, base)
    run = MaintenanceRun(catalog, "erasure", base, now)
    for removal in removals:
        table = removal.table
        run.change(table, partial(erase_rows, catalog, table, removal.keys, replacement=removal.replacement))
    unreadable_paths = sorted(Ledger(ledger).known(rewritten.unreadable))
    if unreadable_paths:
        run.publish(partial(remove_rows, catalog, SEGMENTS, pa.table({"path": unreadable_paths})))
    else:
        run.publish(partial(append_nothing, catalog, SEGMENTS))
    for removal in removals:
        erased.rows[removal.table.name] = erased.rows.get(removal.table.name, 0) + removal.keys.num_rows


def _publish_without_removed_files(catalog: Catalog, now: datetime) -> int:
    """Publish a run whose snapshots do not list the files that the run of `_remove_rows` removed.

    The snapshots of that run still list these files as removed, with their bounds, and cannot be expired while it is the newest
    run. Return the id of the new run's snapshot of the ledger.
    """
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "erasure", base, now)
    for table in run_tables_of(catalog):
        if table is not SEGMENTS and lists_deleted(catalog.load_table(table.identifier), base[table.name]):
            run.change(table, partial(append_nothing, catalog, table))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    return run.pins[SEGMENTS.name]


def _record(catalog: Catalog, erased: Erased, state: str, why: str) -> None:
    """Record the state of the erasure, its reason, and the counts. The vehicle is not recorded."""
    counts = {**erased.rows, "entries": erased.entries, "messages": erased.messages, "segments": erased.segments}
    row = {
        "erasure_id": erased.erasure_id,
        "at": datetime.now(UTC),
        "state": state,
        "why": why,
        "accepted_before": erased.accepted_before,
        "counts": json.dumps(counts, sort_keys=True),
    }
    append_rows(catalog, ERASURES, pa.Table.from_pylist([row], schema=ERASURES.arrow_schema), {})
