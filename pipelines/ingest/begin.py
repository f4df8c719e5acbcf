"""How a run begins: what others left is finished or dropped, and it is settled what this one has to do. No Spark."""

from datetime import datetime

import structlog
from pyiceberg.catalog import Catalog

from archive.segment import Selection
from archive.store import Archive
from contracts.settings import Settings
from contracts.tables import SEGMENTS
from pipelines.ingest.branches import branch_of, close_abandoned, close_run, open_run
from pipelines.ingest.planning import Aside, Plan, plan
from pipelines.ingest.publish import finish, is_published

log = structlog.get_logger(__name__)


def begin(
    catalog: Catalog, settings: Settings, *, run_id: str, now: datetime, part: Selection = None, aside: Aside | None = None
) -> Plan | None:
    """The run's work, with its branch of `ingested_segments` open; None if nothing is new, or the run counts already.

    What an earlier attempt at this run left is dropped.
    """
    finish(catalog)
    if is_published(catalog, run_id, now):
        log.info("run counts already", run_id=run_id)
        return None
    close_run(catalog, branch_of(run_id))
    for branch in close_abandoned(catalog, now):
        log.warning("dropped what an abandoned run left", branch=branch)
    todo = plan(catalog, Archive(settings.archive, settings.s3), part, aside)
    if not todo.segments:
        log.info("nothing new in the archive", run_id=run_id)
        return None
    open_run(catalog, run_id, todo.base[SEGMENTS.name], now)
    return todo
