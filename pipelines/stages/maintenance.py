"""Upkeep of lake and queues: compaction, garbage collection, checks, migrations, and signals and their keys."""

import json
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_days, add_run_id, flag, option
from pipelines.lineage import emits_lineage
from pipelines.stages import stage

if TYPE_CHECKING:
    from pipelines.maintenance.check import Checked
    from pipelines.maintenance.compact import Compacted
    from pipelines.maintenance.garbage import Collected
    from pipelines.maintenance.verify import Verified
    from pipelines.migrations.migrate import Migrated

log = structlog.get_logger(__name__)


@stage(add_run_id)
def compact(settings: Settings, _: Namespace) -> str:
    """Rewrite small files, sort settled days by vehicle, apply deletes; no row changes."""
    return compact_tables(settings).to_json()


@emits_lineage("compact")
def compact_tables(settings: Settings) -> "Compacted":
    """Compact all tables, and return the results by table. Spark starts only if a table needs compaction.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    from pipelines.catalog import await_catalog
    from pipelines.ingest.lease import rewriting
    from pipelines.maintenance.compact import compact as compact_lake
    from pipelines.maintenance.compact import has_work
    from pipelines.spark.session import session

    catalog = await_catalog(settings)
    now = datetime.now(UTC)
    if not has_work(catalog, settings, now=now):
        return compact_lake(None, catalog, settings, now=now)  # without Spark, it only describes the tables
    with rewriting(catalog, "compaction"), session(settings, "compact") as spark:
        return compact_lake(spark, catalog, settings, now=now)


@stage(add_run_id, flag("--dry-run", "list what would go; change nothing"))
def garbage(settings: Settings, options: Namespace) -> str:
    """Expire entries, then remove data, refused messages, snapshots, orphans and segments past their retentions."""
    return collect_garbage(settings, run_id=options.run_id, dry_run=options.dry_run).to_json()


@emits_lineage("garbage", unless="dry_run")
def collect_garbage(settings: Settings, *, run_id: str | None = None, dry_run: bool = False) -> "Collected":
    """Collect garbage; return what was removed, or with `dry_run` what would be removed.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    from pipelines.catalog import await_catalog
    from pipelines.ingest.lease import rewriting
    from pipelines.ingest.run import new_run_id
    from pipelines.maintenance.garbage import collect_garbage as collect
    from pipelines.spark.session import session

    catalog = await_catalog(settings)
    now = datetime.now(UTC)
    lease = nullcontext() if dry_run else rewriting(catalog, "garbage collection")
    with lease, session(settings, "garbage") as spark:
        return collect(spark, catalog, settings, run_id=run_id or new_run_id(now), now=now, dry_run=dry_run)


@stage(
    add_run_id,
    option("--days", "only what began so many days ago or later; without it, or 0: all", type=float),
    flag("--repair", "ingest again what is missing or doubled, and what was not ingested"),
)
def check(settings: Settings, options: Namespace) -> str:
    """Compare archive, ledger and tables, segment by segment; with `--repair` repair what disagrees. Only a repair needs Spark.

    Raises:
        Permanent: archive, ledger and tables disagree, and were not repaired.
    """
    result = check_lake(settings, days=options.days, repair=options.repair)
    if not result.agree:
        raise Permanent(f"archive, ledger and tables disagree: {result.to_json()}; see manifold lake check, and its --repair")
    return result.to_json()


def check_lake(settings: Settings, *, days: float | None = None, repair: bool = False) -> "Checked":
    """Compare archive, ledger and tables, of the last `days`, or of all time if it is None or 0; return the findings.

    With `repair`, repair what disagrees, and return the findings that remain.

    Raises:
        LeaseHeld: a repair is needed, and another job is rewriting tables.
        Permanent: `days` reaches back beyond the year 1.
    """
    from manifold.archive.segment import Interval
    from pipelines.catalog import await_catalog
    from pipelines.maintenance.check import check as check_segments

    now = datetime.now(UTC)
    try:
        interval = Interval(now - timedelta(days=days), now) if days else None
    except (ValueError, OverflowError) as exc:
        raise Permanent(f"--days {days:g} is not a number of days since the year 1; leave it out for the whole archive") from exc
    catalog = await_catalog(settings)
    result = check_segments(catalog, settings, now=now, interval=interval)
    if result.agree or not repair:
        return result
    from pipelines.ingest.lease import rewriting
    from pipelines.maintenance.repair import repair as repair_lake
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    with rewriting(catalog, "repair"), session(settings, "check", meanwhile=GREAT_EXPECTATIONS) as spark:
        return repair_lake(spark, catalog, settings, now=now, interval=interval)


@stage(add_run_id, flag("--plan", "list the steps that are due; change nothing"))
def migrate(settings: Settings, options: Namespace) -> str:
    """Migrate the tables of an earlier release to this one's schema, step by step. No Spark."""
    return migrate_lake(settings, plan=options.plan).to_json()


@emits_lineage("migrate", unless="plan")
def migrate_lake(settings: Settings, *, plan: bool = False, say: Callable[[str], None] = lambda _: None) -> "Migrated":
    """Migrate the tables; return the steps that were taken, or with `plan` the steps that are due.

    Before each step, `say` is called with a text that names it.

    Raises:
        LeaseHeld: another job is rewriting tables.
    """
    from pipelines.catalog import await_catalog
    from pipelines.ingest.lease import rewriting
    from pipelines.migrations import migrate as migrations

    catalog = await_catalog(settings)
    if plan:
        return migrations.plan(catalog)
    with rewriting(catalog, "migration"):
        return migrations.migrate(catalog, say=say)


@stage(add_run_id, flag("--repair", "queue what is missing, end what has ended, put in order"))
def verify(settings: Settings, options: Namespace) -> str:
    """Compare the queues with the lake; with `--repair` queue what is missing, end what has ended, restore the order."""
    return verify_queues(settings, repair=options.repair).to_json()


def verify_queues(settings: Settings, *, repair: bool = False) -> "Verified":
    """Compare the queues with the lake; return the differences, and the number of repaired differences."""
    from pipelines.catalog import await_catalog
    from pipelines.maintenance.verify import verify as verify_against_lake
    from pipelines.spark.session import session

    catalog = await_catalog(settings)
    with session(settings, "verify") as spark:
        return verify_against_lake(spark, catalog, settings, now=datetime.now(UTC), repair=repair)


@stage(add_run_id, add_days, flag("--again", "all of these days, also those that the rules of now have made"))
def process_signals(settings: Settings, options: Namespace) -> str:
    """Reprocess the lake's signals: days with rows made by other rules, or with payloads that could not be read. No Spark.

    Return the days that were reprocessed, and the number of their rows.
    """
    from pipelines.catalog import await_catalog
    from pipelines.signals.process import process_again

    catalog = await_catalog(settings)
    now = datetime.now(UTC)
    return process_again(catalog, settings, now=now, start=options.start, end=options.end, again=options.again).to_json()


@stage(add_run_id)
def rotate_keys(settings: Settings, _: Namespace) -> str:
    """Rewrap each day's signal key under the key ring's current key; no signal is touched. No Spark."""
    rewrapped, unreadable = rotate_day_keys(settings)
    return json.dumps({"wrapped": rewrapped, "gone": unreadable})


@emits_lineage("rotate_keys", reads=["keys"], writes=["keys"])
def rotate_day_keys(settings: Settings) -> tuple[int, list[str]]:
    """Rewrap the day keys; return the number of rewrapped keys, and the names of the keys that the ring cannot unwrap."""
    from manifold.lake.day_keys import DayKeys

    rewrapped, unreadable = DayKeys.of(settings).rotate()
    if unreadable:
        log.warning("key ring cannot unwrap these day keys; signals sealed under them are unreadable", keys=unreadable)
    log.info("day keys rewrapped under the key ring's current key", rewrapped=rewrapped, unreadable=len(unreadable))
    return rewrapped, unreadable
