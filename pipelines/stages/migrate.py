"""Migrate the tables of an earlier release to this one's schema, step by step. No Spark."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.lineage import emits_lineage

if TYPE_CHECKING:
    from pipelines.migrations.migrate import Migrated


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: whether to change anything."""
    add_run_id(parser)
    parser.add_argument("--plan", action="store_true", help="list the steps that are due; change nothing")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return as JSON the steps that were taken, or with `--plan` the steps that are due."""
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
    from pipelines.migrations import migrate

    catalog = await_catalog(settings)
    if plan:
        return migrate.plan(catalog)
    with rewriting(catalog, "migration"):
        return migrate.migrate(catalog, say=say)
