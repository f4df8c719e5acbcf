"""Opens a run: finishes or drops what other runs left, and plans the work of this one. No Spark."""

import structlog

from manifold.contracts.tables import SEGMENTS
from pipelines.ingest.branches import branch_of, close_abandoned, close_run, open_run
from pipelines.ingest.planning import Exclusions, Plan, plan
from pipelines.ingest.publish import finish, is_published
from pipelines.ingest.run import Run

log = structlog.get_logger(__name__)


def begin(run: Run, aside: Exclusions | None = None) -> Plan | None:
    """Open the run's branch of `ingested_segments` and return its plan; None if nothing is new or the run is committed.

    What an earlier attempt at this run left is dropped.
    """
    catalog, run_id, now = run.catalog, run.run_id, run.now
    finish(catalog)
    if is_published(catalog, run_id, now):
        log.info("run already committed", run_id=run_id)
        return None
    close_run(catalog, branch_of(run_id))
    for branch in close_abandoned(catalog, now):
        log.warning("dropped branches of an abandoned run", branch=branch)
    todo = plan(catalog, run.archive, run.part, aside)
    if not todo.segments:
        log.info("nothing new in the archive", run_id=run_id)
        return None
    open_run(catalog, run_id, todo.base[SEGMENTS.name], now)
    return todo
