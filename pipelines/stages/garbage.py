"""Expire entries, then remove data, refused messages, snapshots, orphans and segments past their retentions."""

import argparse
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.lineage import emits_lineage

if TYPE_CHECKING:
    from pipelines.maintenance.garbage import Collected


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: whether to change anything."""
    add_run_id(parser)
    parser.add_argument("--dry-run", action="store_true", help="list what would go; change nothing")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON what was removed, or with `--dry-run` what would be removed."""
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
