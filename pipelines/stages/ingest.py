"""Write what is new in the archive to the branches of a run; with `--judge` audit it too, while Spark runs."""

import argparse
import sys
from datetime import UTC, datetime

from contracts.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of


def options(parser: argparse.ArgumentParser) -> None:
    """Which part of the archive, and whether it is judged at once."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)
    parser.add_argument("--judge", action="store_true", help="audit the rows too, while Spark runs")


def run(settings: Settings, options: argparse.Namespace) -> str:
    """The run's numbers. A bad verdict does not end it: the stage `audit` finds it, and holds the rows back."""
    from archive.flush import flush
    from pipelines.catalog import open_lake
    from pipelines.ingest.aside import ingest_and_judge
    from pipelines.ingest.audit import AuditFailed
    from pipelines.ingest.run import Run
    from pipelines.ingest.run_all import ingest_before_last, new_run_id
    from pipelines.ingest.trends import trends_if_held_back
    from pipelines.ingest.write import ingest, written_result
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval, catalog, now = interval_of(settings, options), open_lake(settings), datetime.now(UTC)
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    judging = GREAT_EXPECTATIONS if options.judge else ()
    with trends_if_held_back(settings), session(settings, "ingest", meanwhile=judging) as spark:
        _, last = ingest_before_last(Run(spark, catalog, settings, run_id, now, interval))
        if not options.judge:
            return ingest(last).to_json()
        try:
            result, _ = ingest_and_judge(last)
        except AuditFailed as exc:
            sys.stderr.write(f"{exc}\n")
            result = written_result(catalog, run_id)
    return result.to_json()
