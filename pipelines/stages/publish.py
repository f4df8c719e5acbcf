"""Publish a run that has passed its audit. No Spark, unless another run was published first: then this one is redone.

The run is also redone if its branches have no audit result, because an earlier attempt to redo it was killed.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_run_id

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options: which run."""
    add_run_id(parser, required=True)


def run(settings: Settings, options: argparse.Namespace) -> str:
    """Publish the run.

    Return as JSON whether it was published (false if it had no rows to publish), and as `next` the stages that must follow.
    """
    from pipelines.catalog import open_lake
    from pipelines.ingest.audit import may_be_published, passed_already
    from pipelines.ingest.branches import Overtaken
    from pipelines.ingest.discover import POPULATE
    from pipelines.ingest.lineage import emit_lineage
    from pipelines.ingest.publish import publish
    from pipelines.ingest.report_states import settle_reports
    from pipelines.ingest.trends import draw_trends
    from pipelines.populate.ids_news import queues_lag

    catalog, run_id = open_lake(settings), options.run_id
    try:
        if passed_already(catalog, settings, run_id) is None:
            raise Overtaken(f"the current attempt at run {run_id} has not passed its audit; ingest it again")
        published = publish(catalog, run_id, partial(may_be_published, catalog))
        settle_reports(catalog, settings)
        emit_lineage(catalog, settings, run_id)
    except Overtaken as exc:
        sys.stderr.write(f"{exc}; doing so\n")
        _redo_run(catalog, settings, run_id)
        published = True
    now = datetime.now(UTC)
    draw_trends(settings, now=now)  # the run has been audited, so its audit is in the charts
    following = [POPULATE] if queues_lag(catalog, settings, now) else []
    return json.dumps({"run_id": run_id, "published": published, "next": following})


def _redo_run(catalog: "Catalog", settings: Settings, run_id: str) -> None:
    """Ingest, audit and publish the run again, with the same segments.

    Raises:
        Permanent: the run's segments are not recorded, because a retry was killed.
    """
    from manifold.archive.store import Archive
    from pipelines.ingest.ledger import segments_of
    from pipelines.ingest.run import Run
    from pipelines.ingest.runs import ingest_audit_publish
    from pipelines.spark.session import session

    segments = Archive(settings.archive, settings.s3).find(path for path, _ in segments_of(catalog, run_id))
    if not segments:
        raise Permanent(f"a retry of run {run_id} was interrupted before it recorded its segments: clear its task `ingest`")

    with session(settings, "publish") as spark:
        ingest_audit_publish(Run(spark, catalog, settings, run_id, datetime.now(UTC), segments))
