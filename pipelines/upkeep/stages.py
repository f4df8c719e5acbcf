"""The housekeeping stages of the command line, in the manner of `pipelines.stages`; the console runs them, too."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from contracts.errors import Permanent
from contracts.settings import Settings
from pipelines.catalog import await_catalog


def compact_tables(settings: Settings) -> Any:
    """`pipelines.upkeep.compact.Compacted`: what compaction did, by table."""
    from pipelines.spark.session import session
    from pipelines.upkeep.compact import compact, has_work

    catalog, now = await_catalog(settings), datetime.now(UTC)
    if not has_work(catalog, settings, now=now):
        return compact(None, catalog, settings, now=now)
    with session(settings, "compact") as spark:
        return compact(spark, catalog, settings, now=now)


def collect_garbage(settings: Settings, *, run_id: str | None = None, dry_run: bool = False) -> Any:
    """`pipelines.upkeep.garbage.Collected`: what went, or with `dry_run` would go."""
    from pipelines.ingest.run_all import new_run_id
    from pipelines.spark.session import session
    from pipelines.upkeep.garbage import collect_garbage as collect

    catalog, now = await_catalog(settings), datetime.now(UTC)
    with session(settings, "garbage") as spark:
        return collect(spark, catalog, settings, run_id=run_id or new_run_id(now), now=now, dry_run=dry_run)


def verify_queues(settings: Settings, *, repair: bool = False) -> Any:
    """`pipelines.upkeep.verify.Verified`: how queues and lake compare."""
    from pipelines.spark.session import session
    from pipelines.upkeep.verify import verify

    catalog = await_catalog(settings)
    with session(settings, "verify") as spark:
        return verify(spark, catalog, settings, now=datetime.now(UTC), repair=repair)


def check_lake(settings: Settings, *, days: float | None = None, repair: bool = False, without_spark: bool = False) -> Any:
    """`pipelines.upkeep.check.Checked`: how archive, ledger and tables compare; of the last `days`, or of all."""
    from archive.segment import Interval
    from pipelines.populate.few import NeedsSpark
    from pipelines.upkeep.check import check

    catalog, now = await_catalog(settings), datetime.now(UTC)
    interval = Interval(now - timedelta(days=days), now) if days else None
    found = check(catalog, settings, now=now, interval=interval)
    if found.agree or not repair:
        return found
    if without_spark:
        raise NeedsSpark(f"{len(found.findings)} disagreements are to be repaired")
    from pipelines.spark.session import GREAT_EXPECTATIONS, session
    from pipelines.upkeep.mend import repair as mend

    with session(settings, "check", meanwhile=GREAT_EXPECTATIONS) as spark:
        return mend(spark, catalog, settings, now=now, interval=interval)


def restore_lake(settings: Settings, *, without_history: bool = False) -> Any:
    """`pipelines.upkeep.mend.Restored`: the lake is made again from the archive."""
    from archive.flush import flush
    from pipelines.spark.session import GREAT_EXPECTATIONS, session
    from pipelines.upkeep.mend import restore

    flush(settings)
    catalog = await_catalog(settings)
    with session(settings, "restore", meanwhile=GREAT_EXPECTATIONS) as spark:
        return restore(spark, catalog, settings, now=datetime.now(UTC), without_history=without_history)


def rollback_run(settings: Settings, run_id: str) -> Any:
    """`pipelines.upkeep.rollback.RolledBack`: which runs do not count any more."""
    from pipelines.upkeep.rollback import rollback

    return rollback(await_catalog(settings), settings, run_id=run_id, now=datetime.now(UTC))


def migrate_lake(settings: Settings, *, plan: bool = False, say: Callable[[str], None] = lambda _: None) -> Any:
    """`pipelines.migrations.migrate.Migrated`: which steps the tables took, or with `plan` would take."""
    from pipelines.migrations import migrate

    catalog = await_catalog(settings)
    return migrate.plan(catalog) if plan else migrate.migrate(catalog, say=say)


def erase_vehicle(settings: Settings, vin: str, *, why: str, wait_s: float, say: Callable[[str], object]) -> Any:
    """`pipelines.erasure.run.Erased`: what went, and what the search found afterwards."""
    from pipelines.erasure.run import erase

    return erase(await_catalog(settings), settings, vin, why=why, now=datetime.now(UTC), wait_s=wait_s, say=say)


def _check(settings: Settings, options: argparse.Namespace) -> str:
    found = check_lake(settings, days=options.days, repair=options.repair, without_spark=options.without_spark)
    if not found.agree:
        raise Permanent(f"archive, ledger and tables disagree: {found.to_json()}; see manifold lake check, and its --repair")
    return str(found.to_json())


HOUSEKEEPING: dict[str, Callable[[Settings, argparse.Namespace], str]] = {
    "compact": lambda settings, _: str(compact_tables(settings).to_json()),
    "garbage": lambda settings, options: str(collect_garbage(settings, run_id=options.run_id, dry_run=options.dry_run).to_json()),
    "check": _check,
    "migrate": lambda settings, options: str(migrate_lake(settings, plan=options.plan).to_json()),
    "verify": lambda settings, options: str(verify_queues(settings, repair=options.repair).to_json()),
}


def add_options(parser: argparse.ArgumentParser, stage: str) -> None:
    """What these stages take besides what all take."""
    if stage == "garbage":
        parser.add_argument("--dry-run", action="store_true", help="list what would go; change nothing")
    if stage == "check":
        parser.add_argument("--days", type=float, help="only what began so many days ago or later; without it, or 0: all")
        parser.add_argument("--repair", action="store_true", help="take in again what is missing, doubled, or was left lying")
        parser.add_argument("--without-spark", action="store_true", help="stop with exit status 4 where Spark is needed")
    if stage == "migrate":
        parser.add_argument("--plan", action="store_true", help="list the steps that are due; change nothing")
    if stage == "verify":
        parser.add_argument("--repair", action="store_true", help="queue what is missing, end what has ended, put in order")
