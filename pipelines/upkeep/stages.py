"""The housekeeping stages of the command line, in the manner of `pipelines.stages`; the console runs them, too."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

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


HOUSEKEEPING: dict[str, Callable[[Settings, argparse.Namespace], str]] = {
    "compact": lambda settings, _: str(compact_tables(settings).to_json()),
    "garbage": lambda settings, options: str(collect_garbage(settings, run_id=options.run_id, dry_run=options.dry_run).to_json()),
    "verify": lambda settings, options: str(verify_queues(settings, repair=options.repair).to_json()),
}


def add_options(parser: argparse.ArgumentParser, stage: str) -> None:
    """What these stages take besides what all take."""
    if stage == "garbage":
        parser.add_argument("--dry-run", action="store_true", help="list what would go; change nothing")
    if stage == "verify":
        parser.add_argument("--repair", action="store_true", help="queue what is missing, end what has ended, put in order")
