"""From the archive to the queues: the tasks of an ingest, in their order, and the stages that run all of them."""

import json
import sys
from argparse import Namespace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from manifold.contracts.errors import Permanent
from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, flag, interval_of, option, require_run_id
from pipelines.stages import stage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from pipelines.populate.load import Populated


@stage(add_run_id, add_interval, add_no_flush, flag("--dry-run", "only say what is new"))
def discover(settings: Settings, options: Namespace) -> str:
    """Report what is new in the archive, whether the queues lag behind the lake, and which stages must follow. No Spark."""
    from manifold.archive.flush import flush
    from pipelines.catalog import open_lake
    from pipelines.ingest.discover import discover as discover_work

    if not options.no_flush:
        flush(settings)
    interval = interval_of(settings, options)
    catalog = open_lake(settings)
    return discover_work(catalog, settings, now=datetime.now(UTC), interval=interval, dry_run=options.dry_run).to_json()


@stage(add_run_id, add_interval, add_no_flush)
def ingest(settings: Settings, options: Namespace) -> str:
    """Write new segments of the archive to the branches of a run, and audit it with Great Expectations, in one application.

    A failed audit is no error here: the stage `audit` reports it and stops the run.
    """
    from manifold.archive.flush import flush
    from manifold.archive.store import Archive
    from pipelines.catalog import open_lake
    from pipelines.ingest.backlog import ingest_to_branches
    from pipelines.ingest.ledger import new_segments
    from pipelines.ingest.run import Run, new_run_id
    from pipelines.ingest.trends import trends_if_held_back
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval = interval_of(settings, options)
    catalog = open_lake(settings)
    now = datetime.now(UTC)
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    new = new_segments(catalog, Archive(settings.archive, settings.s3), interval)
    bytes_to_ingest = sum(segment.size for segment in new)
    spark_session = session(settings, "ingest", meanwhile=GREAT_EXPECTATIONS, size=bytes_to_ingest)
    with trends_if_held_back(settings), spark_session as spark:
        return ingest_to_branches(Run(spark, catalog, settings, run_id, now, interval)).to_json()


@stage(require_run_id)
def audit(settings: Settings, options: Namespace) -> str:
    """Let a run continue if it has passed its audit, and hold back any other. No Spark: the stage `ingest` has audited it.

    Return the report's address and the number of warnings.

    Raises:
        Permanent: the run breaks rules, which the message names, or its current attempt was not audited.
    """
    from pipelines.catalog import open_lake
    from pipelines.ingest.audit import passed_already, why_held_back

    catalog, run_id = open_lake(settings), options.run_id
    passed = passed_already(catalog, settings, run_id)
    if passed is None:
        raise Permanent(why_held_back(catalog, settings, run_id))
    return json.dumps({"run_id": run_id, **passed})


@stage(require_run_id)
def publish(settings: Settings, options: Namespace) -> str:
    """Publish a run that has passed its audit. No Spark, unless another run was published first: then this one is redone.

    The run is also redone if its branches have no audit result, because an earlier attempt to redo it was killed.

    Return whether it was published (false if it had no rows to publish), and as `next` the stages that must follow.
    """
    from pipelines.catalog import open_lake
    from pipelines.ingest.audit import may_be_published, passed_already
    from pipelines.ingest.branches import Overtaken
    from pipelines.ingest.discover import POPULATE
    from pipelines.ingest.lineage import emit_lineage
    from pipelines.ingest.publish import publish as publish_run
    from pipelines.ingest.report_states import update_report_states
    from pipelines.ingest.trends import draw_trends
    from pipelines.populate.ids_news import queues_lag

    catalog, run_id = open_lake(settings), options.run_id
    try:
        if passed_already(catalog, settings, run_id) is None:
            raise Overtaken(f"the current attempt at run {run_id} has not passed its audit; ingest it again")
        published = publish_run(catalog, run_id, partial(may_be_published, catalog))
        update_report_states(catalog, settings)
        emit_lineage(catalog, settings, run_id)
    except Overtaken as exc:
        sys.stderr.write(f"{exc}; run {run_id} is now ingested, audited and published again\n")
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
    from pipelines.ingest.backlog import ingest_audit_publish
    from pipelines.ingest.ledger import segments_of
    from pipelines.ingest.run import Run
    from pipelines.spark.session import session

    segments = Archive(settings.archive, settings.s3).find(path for path, _ in segments_of(catalog, run_id))
    if not segments:
        raise Permanent(f"a retry of run {run_id} was interrupted before it recorded its segments: clear its task `ingest`")

    with session(settings, "publish") as spark:
        ingest_audit_publish(Run(spark, catalog, settings, run_id, datetime.now(UTC), segments))


@stage(add_run_id)
def populate(settings: Settings, _: Namespace) -> str:
    """Offer the lake's pending entries to the queues, except entries that were enqueued directly.

    Return the counts. Queues that were never loaded, or were lost, stay as they are.

    Raises:
        Permanent: entries are missing from the queues. No later run adds them, so the failed task alerts an operator.
    """
    populated = populate_queues(settings)
    if populated.problem:
        raise Permanent(populated.problem)
    return populated.to_json()


def populate_queues(settings: Settings) -> "Populated":
    """Offer pending entries to the queues; return the counts. If queues then lack entries, the result's `problem` says why."""
    from pipelines.catalog import open_lake
    from pipelines.populate.load import populate as populate_from_lake
    from pipelines.spark.session import session

    catalog = open_lake(settings)
    with session(settings, "populate", size=0) as spark:  # reads no segments of the archive
        return populate_from_lake(spark, catalog, settings, now=datetime.now(UTC))


@stage(add_run_id, add_no_flush)
def rebuild(settings: Settings, options: Namespace) -> str:
    """Ingest everything recorded, and fill the queues with everything pending, even if they are empty.

    Raises:
        Permanent: entries are missing from the queues.
    """
    from pipelines.ingest.run_all import rebuild as rebuild_queues

    result = rebuild_queues(settings, flush_first=not options.no_flush)
    if result.populated and result.populated.problem:
        raise Permanent(result.populated.problem)
    return result.to_json()


@stage(add_run_id, add_interval, add_no_flush)
def run_all(settings: Settings, options: Namespace) -> str:
    """Ingest, audit, publish and populate, in one application."""
    from pipelines.ingest.run_all import run_all as run_all_stages

    interval = interval_of(settings, options)
    return run_all_stages(settings, run_id=options.run_id, interval=interval, flush_first=not options.no_flush).to_json()


@stage(
    add_run_id,
    flag("--until-idle", "end when nothing is new"),
    option("--for-seconds", "end after this long", type=float),
)
def stream(settings: Settings, options: Namespace) -> str:
    """Ingest, audit, publish and populate in micro-batches, continuously.

    Without `--until-idle` and `--for-seconds`, only SIGTERM or SIGINT ends the stream. Return the number of micro-batches, and
    what they ingested.
    """
    from pipelines.stream.query import stream as ingest_stream

    return ingest_stream(settings, until_idle=options.until_idle, for_s=options.for_seconds).to_json()
