"""Compare archive, ledger and tables, segment by segment; with `--repair` repair what disagrees. Only a repair needs Spark."""

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id

if TYPE_CHECKING:
    from pipelines.maintenance.check import Checked


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: how far back, and whether to repair."""
    add_run_id(parser)
    parser.add_argument("--days", type=float, help="only what began so many days ago or later; without it, or 0: all")
    parser.add_argument(
        "--repair", action="store_true", help="ingest again what is missing or doubled, and what was not ingested"
    )


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the result as JSON.

    Raises:
        Permanent: archive, ledger and tables disagree, and were not repaired.
    """
    result = check_lake(settings, days=options.days, repair=options.repair)
    if not result.agree:
        raise Permanent(f"archive, ledger and tables disagree: {result.to_json()}; see manifold lake check, and its --repair")
    return result.to_json()


def check_lake(settings: Settings, *, days: float | None = None, repair: bool = False) -> "Checked":
    """Compare archive, ledger and tables, of the last `days` or (None or 0) of all time; return the findings.

    With `repair`, repair what disagrees, and return the findings that remain.

    Raises:
        LeaseHeld: a repair is needed, and another job is rewriting tables.
        Permanent: `days` reaches back beyond the year 1.
    """
    from manifold.archive.segment import Interval
    from pipelines.catalog import await_catalog
    from pipelines.maintenance.check import check

    now = datetime.now(UTC)
    try:
        interval = Interval(now - timedelta(days=days), now) if days else None
    except (ValueError, OverflowError) as exc:
        raise Permanent(f"--days {days:g} is not a number of days since the year 1; leave it out for the whole archive") from exc
    catalog = await_catalog(settings)
    result = check(catalog, settings, now=now, interval=interval)
    if result.agree or not repair:
        return result
    from pipelines.ingest.lease import rewriting
    from pipelines.maintenance.repair import repair as repair_lake
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    with rewriting(catalog, "repair"), session(settings, "check", meanwhile=GREAT_EXPECTATIONS) as spark:
        return repair_lake(spark, catalog, settings, now=now, interval=interval)
