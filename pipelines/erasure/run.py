"""`manifold vin erase`: erases a vehicle from queues, archive and lake, and proves it. No Spark.

The order ensures that a later step finds whatever an earlier one leaves, and that the next attempt finishes after a kill:

1. the queues: removed entries are neither sent nor ended any more;
2. the recorders close their segments, so that everything accepted is in the archive;
3. the archive, segment by segment: from here on, readers get it without the vehicle;
4. the erasure waits for runs that began before it, for a limited time; step 5 overtakes those that take longer;
5. one run removes the rows from every table in one commit, and a second run drops the removed files' bounds from the manifests;
6. every earlier snapshot and branch is expired, with the files that only they reference; then data that dispatchers put back
   into Redis, while the tables had it, is removed again;
7. everything is searched, since meanwhile a recorder may have brought an outcome. If anything is found, the erasure starts over.
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
from pipelines.erasure.files import Found, expire, prove, remove_unknown
from pipelines.erasure.names import Named
from pipelines.erasure.queues import erase_data, erase_from_queues, prove_queues
from pipelines.erasure.sealed import opened_by
from pipelines.erasure.search import TEXTS, drop_deleted_entries, erase_texts, rows_named
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
WAIT_S = 900.0
LOOK_S = 1.0
UNSEALED = "a recorder cannot be asked to close its open segments, which may name the vehicle; see `manifold status`"
BEGUN, ERASED, LEFT = "begun", "erased", "left"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Erased:
    """Counts of what was removed, and what the final search found. It does not name the vehicle."""

    erasure_id: str
    accepted_before: datetime
    entries: int = 0  # of the queues
    segments: int = 0  # of the archive that were rewritten
    messages: int = 0  # in those segments that were changed or removed
    rows: dict[str, int] = field(default_factory=dict)  # by table
    snapshots: int = 0  # that were expired
    files: int = 0  # of the tables that no snapshot referenced, and that were removed
    searched: int = 0  # files of archive and warehouse
    found: list[Found] = field(default_factory=list)  # places that still name it

    @property
    def proved(self) -> bool:
        """Whether the search found nothing."""
        return not self.found

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self), default=str)


@emits_lineage("erase", reads=["archive", "queues"], writes=["archive", "queues"])
def erase_vehicle(settings: Settings, vin: str, *, why: str, wait_s: float, say: Callable[[str], object]) -> Erased:
    """`erase` for these settings, of everything accepted until now.

    Raises:
        LeaseHeld: another job is rewriting tables; nothing happened.
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
    wait_s: float = WAIT_S,
    say: Callable[[str], object] = lambda _: None,
    seal: Callable[[Settings], bool] = flush,
) -> Erased:
    """Erase the vehicle from everything accepted before `now`. A repeated call resumes where the last one stopped.

    `seal` makes recorders archive their open segments, and returns whether all of them did. `wait_s` bounds the wait for runs
    that began before the erasure; `say` is called with each step as it begins.

    Raises:
        Permanent: `why` is empty, or names the vehicle.
        Retryable: a recorder cannot be asked to close its segments, or another process was in the way; run it again.
        redis.RedisError: Redis is unavailable or refuses.
    """
    named = Named(vin, first_seq_at(now), opened_by(settings))
    if not why.strip() or named.is_in(why):
        raise Permanent("--why must say why, and must not name the vehicle: the record is kept")
    ensure_tables(catalog)
    done = Erased(f"{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}", now)
    _note(catalog, done, BEGUN, why)
    with connect(settings.redis) as redis, populate_lock(redis) as lock:
        for number in range(MAX_PASSES):
            say("the queues")
            done.entries += erase_from_queues(redis, settings, named)
            if not seal(settings):
                raise Retryable(UNSEALED)
            done.entries += erase_from_queues(redis, settings, named)  # of messages that a recorder still had to hand over
            _round(catalog, settings, named, done, wait_s if number == 0 else 0.0, say)
            erase_data(redis, named)
            lock.check()
            say("searching every file")
            done.found, done.searched = search_all(catalog, settings, redis, named)
            if done.proved:
                break
    _note(catalog, done, ERASED if done.proved else LEFT, why)
    counts = {"erasure_id": done.erasure_id, "rows": done.rows, "messages": done.messages}
    if done.proved:
        log.info("vehicle erased", **counts)
    else:
        log.warning("erasure not proved", **counts, found=len(done.found))
    return done


def _round(catalog: Catalog, settings: Settings, named: Named, done: Erased, wait_s: float, say: Callable[[str], object]) -> None:
    say("the archive")
    archive, began = Archive(settings.archive, settings.s3), datetime.now(UTC)
    rewritten = erase_from_archive(archive, named)
    done.segments, done.messages = done.segments + len(rewritten.segments), done.messages + rewritten.messages
    say("runs that began before")
    _await_runs(catalog, datetime.now(UTC), wait_s)
    say("the tables")
    until_not_overtaken()(lambda: _remove_rows(catalog, named, rewritten, began, done))
    published = until_not_overtaken()(lambda: _drop_deleted_entries(catalog, began))
    check_lease(catalog)
    for table, column in TEXTS:
        done.rows[table.name] = done.rows.get(table.name, 0) + erase_texts(catalog, table, column, named)
        drop_deleted_entries(catalog, table)
    for path in rewritten.unreadable:
        archive.remove(path)
    say("snapshots and their files")
    done.snapshots += expire(catalog, published, began)
    done.files += remove_unknown(catalog, settings, named)


def search_all(catalog: Catalog, settings: Settings, redis: Redis, named: Named) -> tuple[list[Found], int]:
    """Find what was accepted before the erasure and still names the vehicle; return it and the number of files searched."""
    archive = Archive(settings.archive, settings.s3)
    found, searched = prove(catalog, settings, named)
    left = erase_from_archive(archive, named, dry=True)
    found += [Found(path, "archive") for path in [*left.segments, *left.unreadable]]
    return sorted([*found, *prove_queues(redis, named)]), searched + left.files


def _await_runs(catalog: Catalog, before: datetime, wait_s: float) -> None:
    """Wait until every run that began before `before` has ended, at most `wait_s`; the erasure overtakes those still open."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        properties = catalog.load_table(SEGMENTS.identifier).properties
        if not any(datetime.fromisoformat(at) < before for name, at in properties.items() if name.startswith(BEGAN)):
            return
        time.sleep(LOOK_S)


def _remove_rows(catalog: Catalog, named: Named, rewritten: Rewritten, now: datetime, done: Erased) -> None:
    """Publish a run that removes the rows from every table, and the unreadable files from the ledger.

    It is published even if no row is found: runs that began before are overtaken, and start again with the archive as it is now.
    """
    ledger = catalog.load_table(SEGMENTS.identifier)
    base = main_snapshots(catalog, ledger)
    removals = rows_named(catalog, named, base)
    run = MaintenanceRun(catalog, "erasure", base, now)
    for each in removals:
        run.change(each.table, partial(erase_rows, catalog, each.table, each.keys, replacement=each.replacement))
    gone = sorted(Ledger(ledger).known(rewritten.unreadable))
    run.publish(
        partial(remove_rows, catalog, SEGMENTS, pa.table({"path": gone})) if gone else partial(append_nothing, catalog, SEGMENTS)
    )
    for each in removals:
        done.rows[each.table.name] = done.rows.get(each.table.name, 0) + each.keys.num_rows


def _drop_deleted_entries(catalog: Catalog, now: datetime) -> int:
    """Publish a run whose snapshots omit the files that the previous run removed; return its snapshot of the ledger.

    The snapshots of that run still list those files, and cannot be expired while it is the newest run.
    """
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = MaintenanceRun(catalog, "erasure", base, now)
    for table in run_tables_of(catalog):
        if table is not SEGMENTS and lists_deleted(catalog.load_table(table.identifier), base[table.name]):
            run.change(table, partial(append_nothing, catalog, table))
    run.publish(partial(append_nothing, catalog, SEGMENTS))
    return run.pins[SEGMENTS.name]


def _note(catalog: Catalog, done: Erased, state: str, why: str) -> None:
    """Record when and why the erasure happened, and how much was removed; not which vehicle."""
    rows = {**done.rows, "entries": done.entries, "messages": done.messages, "segments": done.segments}
    row = {"erasure_id": done.erasure_id, "at": datetime.now(UTC), "state": state, "why": why}
    row |= {"accepted_before": done.accepted_before, "counts": json.dumps(rows, sort_keys=True)}
    append_rows(catalog, ERASURES, pa.Table.from_pylist([row], schema=ERASURES.arrow_schema), {})
