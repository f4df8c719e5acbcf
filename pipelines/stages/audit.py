"""Judge what a run has written, unless the stage `ingest` has done so and it passed."""

import argparse
import json
from datetime import UTC, datetime

from manifold.settings import Settings
from pipelines.arguments import add_run_id
from pipelines.spark.needed import NeedsSpark, add_without_spark


def options(parser: argparse.ArgumentParser) -> None:
    """Which run."""
    add_run_id(parser, required=True)
    add_without_spark(parser)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Where the verdict's page is, and how many rules it warns of."""
    from pipelines.catalog import open_lake
    from pipelines.ingest.verdict import passed_already
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    catalog, run_id = open_lake(settings), options.run_id
    known = passed_already(catalog, settings, run_id)
    if known is not None:
        return json.dumps({"run_id": run_id, **known})
    from pipelines.ingest.audit import AuditFailed, audit_run
    from pipelines.ingest.lineage import tell_held_back
    from pipelines.ingest.run import Run
    from pipelines.ingest.trends import trends_if_held_back

    if options.without_spark:
        raise NeedsSpark(f"run {run_id} is not judged yet, or did not pass")
    with trends_if_held_back(settings), session(settings, "audit", meanwhile=GREAT_EXPECTATIONS) as spark:
        try:
            judged = audit_run(Run(spark, catalog, settings, run_id, datetime.now(UTC)))
        except AuditFailed as exc:
            tell_held_back(catalog, settings, run_id, exc.result)
            raise
    warnings = len(judged.warnings) if judged else 0
    return json.dumps({"run_id": run_id, "report": str(judged.report) if judged else None, "warnings": warnings})
