"""What a check found, mended: the lake forgets the segments concerned, and takes them in again. And the whole lake, made again.

To forget is a run of its own: rows and ledger go together, from one commit on. Killed afterwards, the segments are merely new,
and the next ingest takes them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from adapters.lake import ensure_tables
from adapters.redis import connect
from archive.flush import flush
from archive.segment import Interval, Segment
from archive.store import Archive
from contracts.errors import OutcomeUnknown, Permanent
from contracts.settings import Settings
from contracts.tables import DATA, IDS, META, OUTCOMES, QUARANTINE, RUN_TABLES, SEGMENTS, Table
from pipelines.catalog import await_catalog
from pipelines.ingest.amending import Amendment, until_not_overtaken
from pipelines.ingest.branches import EVERYTHING, UNDOES
from pipelines.ingest.contents import replace_content
from pipelines.ingest.ledger import gone, ledger_of, pruned_before
from pipelines.ingest.publish import current_snapshots, finish, main_snapshots
from pipelines.ingest.removal import remove_rows
from pipelines.ingest.run import Run
from pipelines.ingest.run_all import ingest_in_chunks, new_run_id
from pipelines.populate.lock import populate_lock
from pipelines.spark.session import GREAT_EXPECTATIONS, session
from pipelines.upkeep.check import Checked, Comparison, check, disagreements
from pipelines.upkeep.check_plan import MENDABLE, Found, Trouble

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    run_id: str  # of the run that emptied the tables: while its history is kept, it can be taken back
    segments: int
    runs: int

    def to_json(self) -> str:
        """One line, for logs and for whoever started the job."""
        return json.dumps(asdict(self))


def repair(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, interval: Interval | None = None
) -> Checked:
    """Take in again what the lake does not have as the archive has it, and what was left lying; then compare once more.

    Raises:
        AuditFailed: what is taken in breaks a rule; it stays out until the cause is mended.
        Retryable: something was away, or other runs were in the way; do it again.
    """
    findings, _, _ = disagreements(catalog, settings, now=now, interval=interval)
    archive = {segment.path: segment for segment in Archive(settings.archive, settings.s3).find({f.path for f in findings})}
    wrong = sorted({f.path for f in findings if f.trouble in MENDABLE and f.path in archive})
    waiting = {f.path for f in findings if f.trouble is Trouble.WAITING}
    if wrong:
        forget(catalog, settings, [archive[path] for path in wrong], now=now)
    again = [archive[path] for path in sorted({*wrong, *waiting})]
    if again:
        ingest_in_chunks(Run(spark, catalog, settings, new_run_id(now), now, again))
    return replace(check(catalog, settings, now=now, interval=interval), repaired=len(again))


def forget(catalog: Catalog, settings: Settings, segments: Sequence[Segment], *, now: datetime) -> None:
    """Remove from ledger and tables what these segments brought; what cannot be doubled by taking them in again stays."""
    until_not_overtaken()(lambda: _forget(catalog, settings, segments, now))


def _forget(catalog: Catalog, settings: Settings, segments: Sequence[Segment], now: datetime) -> None:
    base = main_snapshots(catalog, catalog.load_table(SEGMENTS.identifier))
    run = Amendment(catalog, "repair", base, now)
    for table, named in _to_remove(Comparison(catalog, settings, base, now), segments):
        if named.num_rows:
            run.change(table, partial(remove_rows, catalog, table, named))
    run.publish(partial(remove_rows, catalog, SEGMENTS, pa.table({"path": [segment.path for segment in segments]})))
    log.info("segments are forgotten, and taken in again", run_id=run.run_id, segments=len(segments))


def _to_remove(comparison: Comparison, segments: Sequence[Segment]) -> Iterator[tuple[Table, pa.Table]]:
    """Entries and refused messages of the segments; payloads and outcomes only where they are there more than once.

    A payload is known by its row in the index: that one goes too where the payload is not there once, or it would not come again.
    """
    all_brought = [comparison.brought(segment) for segment in segments]
    found = Found()
    for one in all_brought:
        found.add(comparison.found([one]))
    refused = {s for one in all_brought for s in (one.refused if one.segment.is_replay else one.seqs()) if s in found.quarantine}
    yield IDS, _named(seq=[seq for one in all_brought for seq in one.entries if found.entries[seq]])
    yield QUARANTINE, _named(seq=sorted(refused))
    yield DATA, _named(data_id=[d for d, rows in found.data.items() if rows > 1])
    yield META, _named(data_id=[d for d, rows in found.meta.items() if rows > 1 or found.data[d] != 1])
    doubled = [key for key, rows in found.outcomes.items() if rows > 1]
    yield OUTCOMES, _named(vin=[vin for vin, _ in doubled], seq=[seq for _, seq in doubled])


def _named(*, vin: list[str] | None = None, seq: list[int] | None = None, data_id: list[str] | None = None) -> pa.Table:
    given = {"vin": (vin, pa.string()), "seq": (seq, pa.int64()), "data_id": (data_id, pa.string())}
    return pa.table({name: pa.array(values, kind) for name, (values, kind) in given.items() if values is not None})


def restore_lake(settings: Settings, *, without_history: bool = False) -> Restored:
    """`restore` of the lake of these settings, with all that the recorder has written until now."""
    flush(settings)
    catalog = await_catalog(settings)
    with session(settings, "restore", meanwhile=GREAT_EXPECTATIONS) as spark:
        return restore(spark, catalog, settings, now=datetime.now(UTC), without_history=without_history)


def restore(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, now: datetime, without_history: bool = False
) -> Restored:
    """Empty every table that runs write, and take in the whole archive, oldest first. Meanwhile nobody fills the queues.

    Raises:
        Permanent: the lake has segments that the archive has no more; `without_history`: they are given up.
        AuditFailed: what the archive has breaks a rule; mend the cause, then `manifold ingest` goes on.
    """
    lost = _unreadable(catalog)
    if not without_history:
        _require_all(catalog, settings, readable=SEGMENTS not in lost)
    _drop(catalog, lost)
    ensure_tables(catalog)
    with connect(settings.redis) as redis, populate_lock(redis) as lock:
        run_id = until_not_overtaken()(lambda: empty(catalog, now))
        again = f"{run_id}_again"
        done = ingest_in_chunks(Run(spark, catalog, settings, again, now), after_each=lock.check)
    result = Restored(run_id, done.ingested.segments, len(done.runs))
    log.info("the lake is made again from the archive", **asdict(result))
    return result


def empty(catalog: Catalog, now: datetime) -> str:
    """A run that leaves nothing in any table that runs write; its id.

    Raises:
        ConcurrentPublish: another run was published meanwhile; nothing happened.
    """
    segments = catalog.load_table(SEGMENTS.identifier)
    try:
        finish(catalog, segments)
    except OutcomeUnknown as exc:
        log.warning("a run that counts has lost what it wrote; the archive has it", reason=str(exc))
    base = current_snapshots(catalog, segments)
    run = Amendment(catalog, "restore", base, now)
    for table in RUN_TABLES:
        if table is not SEGMENTS:
            run.change(table, partial(replace_content, catalog, table, None))
    run.publish(partial(replace_content, catalog, SEGMENTS, None), {UNDOES: EVERYTHING})
    return run.run_id


def _unreadable(catalog: Catalog) -> list[Table]:
    """The tables whose metadata cannot be read; the ledger also where there is none."""
    lost = []
    for table in RUN_TABLES:
        try:
            catalog.load_table(table.identifier)
        except NoSuchTableError:
            lost += [table] if table is SEGMENTS else []
        except (OSError, ValueError) as exc:
            log.warning("table cannot be read", table=table.name, reason=str(exc))
            lost.append(table)
    return lost


def _drop(catalog: Catalog, lost: Sequence[Table]) -> None:
    """Drop them from the catalog, so that they can be made anew.

    Where the ledger is lost, all go, and it goes last: an empty ledger beside full tables would double all that they have, and an
    unreadable one stops whoever comes before this is done.
    """
    all_of_them = RUN_TABLES if SEGMENTS in lost else lost
    for table in [*(table for table in all_of_them if table is not SEGMENTS), *([SEGMENTS] if SEGMENTS in lost else [])]:
        with suppress(NoSuchTableError):
            catalog.drop_table(table.identifier)
            log.warning("table is dropped, to be made anew", table=table.name)


def _require_all(catalog: Catalog, settings: Settings, *, readable: bool) -> None:
    remedy = "bring the archive back from a copy; or give that history up with --without-history"
    if not readable:
        raise Permanent(f"ingested_segments cannot be read: nobody knows whether the archive has all that the lake had; {remedy}")
    count, first, last = 0, "", ""
    for path in gone(ledger_of(catalog), Archive(settings.archive, settings.s3)):
        count, first, last = count + 1, min(first or path, path), max(last, path)
    if count:
        raise Permanent(f"{count} segments that are in the lake are not in the archive, from {first} to {last}; {remedy}")
    pruned = pruned_before(catalog.load_table(SEGMENTS.identifier))
    if pruned is not None:
        raise Permanent(
            f"the lake has what began before {pruned:%Y-%m-%d}, and the archive does not keep it any more "
            f"(MANIFOLD_ARCHIVE_RETENTION_DAYS={settings.archive_retention_days:g}); {remedy}"
        )
