"""Write new segments of the archive to the branches of a run, and audit it with Great Expectations, in one application."""

import argparse
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of

if TYPE_CHECKING:
    from pipelines.ingest.run import Ingested, Run


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which part of the archive."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Return the run's counts as JSON. A failed audit is no error here: the stage `audit` reports it, and holds the rows back."""
    from manifold.archive.flush import flush
    from manifold.archive.store import Archive
    from pipelines.catalog import open_lake
    from pipelines.ingest.ledger import new_segments
    from pipelines.ingest.run import Run
    from pipelines.ingest.run_all import ingest_before_last, new_run_id
    from pipelines.ingest.trends import trends_if_held_back
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval, catalog, now = interval_of(settings, options), open_lake(settings), datetime.now(UTC)
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    new = new_segments(catalog, Archive(settings.archive, settings.s3), interval)
    on_spark = session(settings, "ingest", meanwhile=GREAT_EXPECTATIONS, size=sum(segment.size for segment in new))
    with trends_if_held_back(settings), on_spark as spark:
        _, last = ingest_before_last(Run(spark, catalog, settings, run_id, now, interval))
        return _judged(last).to_json()


def _judged(run: "Run") -> "Ingested":
    from pipelines.ingest.audit import AuditFailed
    from pipelines.ingest.lineage import emit_held_back
    from pipelines.ingest.quarantine_offenders import ingest_and_audit
    from pipelines.ingest.write import written_result

    try:
        return ingest_and_audit(run)[0]
    except AuditFailed as exc:
        sys.stderr.write(f"{exc}\n")
        emit_held_back(run.catalog, run.settings, run.run_id, exc.result)
        return written_result(run.catalog, run.run_id)
