"""Every stage in one Spark application: `python -m pipelines run_all`, and what `manifold ingest` and `manifold rebuild` call."""

import json
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import structlog
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from adapters.lake import ensure_tables
from contracts.settings import Settings
from pipelines.archive.flush import flush
from pipelines.archive.segments import Interval, Part
from pipelines.catalog import await_catalog, naming_the_catalog
from pipelines.ingest.audit import audit_run
from pipelines.ingest.look import look
from pipelines.ingest.publish import Overtaken, publish
from pipelines.ingest.run import Ingested
from pipelines.ingest.write import ingest, published_result
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import GREAT_EXPECTATIONS, session

TRIES = 20  # runs that begin at once are published one after the other; the others do their work again

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a whole run did."""

    run_id: str
    ingested: Ingested
    populated: Populated | None  # None: it was not asked for
    report: str | None  # the audit's page; None: nothing was written
    warnings: int

    def to_json(self) -> str:
        """One line, for logs and for whoever started the job."""
        return json.dumps(asdict(self))


def new_run_id(now: datetime) -> str:
    """A run id for a run that nobody else has named."""
    return f"manual_{now:%Y%m%dT%H%M%S}_{secrets.token_hex(3)}"


def run_all(
    settings: Settings,
    *,
    run_id: str | None = None,
    interval: Interval | None = None,
    flush_first: bool = True,
    with_populate: bool = True,
    everything: bool = False,
) -> RunResult:
    """Ingest, judge, publish, populate. Running it again changes nothing; with `everything` it is a rebuild of the queues.

    Raises:
        AuditFailed: the run breaks a rule of severity `error`; main is as it was.
        Retryable: something was away, or another run was in the way; do it again.
    """
    now = datetime.now(UTC)
    run_id = run_id or new_run_id(now)
    if flush_first:
        flush(settings)
    catalog = await_catalog(settings)
    with naming_the_catalog(settings):
        ensure_tables(catalog)
        found = look(catalog, settings, now=now, interval=interval)
        if not (found.segments or with_populate):  # Spark would start for nothing
            return RunResult(run_id, published_result(catalog, run_id), None, None, 0)
    job, judging = "rebuild" if everything else "ingest", GREAT_EXPECTATIONS if found.segments else ()
    with naming_the_catalog(settings), session(settings, job, java_options=found.java_options, meanwhile=judging) as spark:
        written, report, warnings = ingest_audit_publish(spark, catalog, settings, run_id=run_id, now=now, part=interval)
        populated = populate(spark, catalog, settings, now=now, everything=everything) if with_populate else None
    return RunResult(run_id, written, populated, report, warnings)


def rebuild(settings: Settings, *, flush_first: bool = True) -> RunResult:
    """Take in everything recorded, offer everything pending, and mark the queues as loaded."""
    return run_all(settings, flush_first=flush_first, everything=True)


def ingest_audit_publish(
    spark: SparkSession, catalog: Catalog, settings: Settings, *, run_id: str, now: datetime, part: Part = None
) -> tuple[Ingested, str | None, int]:
    """The run's numbers, its report and the number of its warnings; done again for as long as others are published first."""
    ensure_tables(catalog)
    again = Retrying(
        retry=retry_if_exception_type(Overtaken),
        stop=stop_after_attempt(TRIES),
        wait=wait_random(0, 2),
        before_sleep=lambda state: log.info(
            "another run was first; doing this one again", run_id=run_id, tries=state.attempt_number
        ),
        reraise=True,
    )
    for attempt in again:
        with attempt:
            written = ingest(spark, catalog, settings, run_id=run_id, now=now, part=part)
            judged = audit_run(spark, catalog, settings, run_id=run_id, now=now)
            publish(catalog, run_id)
    return written, str(judged.report) if judged else None, len(judged.warnings) if judged else 0
