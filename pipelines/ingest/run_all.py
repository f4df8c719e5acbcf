"""Runs every stage in one process: `python -m pipelines run_all`, `manifold ingest`, `manifold rebuild`."""

import json
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from manifold.archive.flush import flush
from manifold.archive.segment import Interval
from manifold.lake.catalog import ensure_tables
from manifold.runtime.alert import alert
from manifold.settings import Settings
from pipelines.catalog import await_catalog, naming_the_catalog
from pipelines.ingest.audit import AuditFailed
from pipelines.ingest.audit_result import may_be_published
from pipelines.ingest.branches import ConcurrentPublish
from pipelines.ingest.chunks import runs_of
from pipelines.ingest.discover import discover
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.lineage import emit_held_back, emit_lineage
from pipelines.ingest.publish import finish_committed_runs, is_published, publish
from pipelines.ingest.quarantine_offenders import ingest_and_audit
from pipelines.ingest.report_states import settle_reports
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.trends import refresh_trends
from pipelines.ingest.write import written_result
from pipelines.lineage import emits_lineage
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import GREAT_EXPECTATIONS, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ATTEMPTS = 20  # of simultaneous runs, one is published at a time; the others start again

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Totals over all chunk runs, and the last run's report."""

    ingested: Ingested
    report: str | None = None
    warnings: int = 0
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a whole run."""

    run_id: str
    ingested: Ingested
    populated: Populated | None  # None: not requested
    report: str | None  # address of the audit's page; None: nothing was written
    warnings: int
    runs: list[str] = field(default_factory=list)  # ids of the published runs; several if the backlog was divided into chunks
    held_back: str | None = None  # of a rebuild: why new segments were not published

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def new_run_id(now: datetime) -> str:
    """Generate an id for a run that has none yet."""
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
    """Ingest, audit, publish, populate. Idempotent; with `everything`, rebuild the queues.

    Raises:
        AuditFailed: the run breaks a rule of severity `error`; main is unchanged. A rebuild continues with what main has.
        Retryable: a service was unavailable, or another run was in the way; run it again.
    """
    now = datetime.now(UTC)
    run_id = run_id or new_run_id(now)
    if flush_first:
        flush(settings)
    catalog = await_catalog(settings)
    with naming_the_catalog(settings):
        ensure_tables(catalog)
        found = discover(catalog, settings, now=now, interval=interval)
        if not (found.segments or with_populate):  # nothing to do on Spark
            return RunResult(run_id, written_result(catalog, run_id), None, None, 0)

    def ingest_all(spark: "SparkSession") -> tuple[Published, str | None]:
        """Ingest everything new; return the totals, and why the last chunk was held back, if it was."""
        try:
            return ingest_in_chunks(Run(spark, catalog, settings, run_id, now, interval)), None
        except AuditFailed as exc:
            if not everything:
                raise
            # Empty queues help nobody: offer what main has now, and the rest once its run can be published.
            alert(settings, "held back", f"the queues are filled from what was published before: {exc}", run_id=run_id)
            return Published(Ingested(run_id), str(exc.result.report)), str(exc)

    job, judging = "rebuild" if everything else "ingest", GREAT_EXPECTATIONS if found.segments else ()
    on_spark = session(settings, job, java_options=found.java_options, meanwhile=judging, size=found.bytes)
    with refresh_trends(settings), naming_the_catalog(settings), on_spark as spark:
        done, held_back = ingest_all(spark)
        populated = populate(spark, catalog, settings, now=now, everything=everything) if with_populate else None
    return RunResult(run_id, done.ingested, populated, done.report, done.warnings, done.runs, held_back)


@emits_lineage("rebuild", reads=["archive"], writes=["queues"])
def rebuild(settings: Settings, *, flush_first: bool = True) -> RunResult:
    """Ingest the whole archive, offer everything pending, and mark the queues as loaded."""
    return run_all(settings, flush_first=flush_first, everything=True)


def ingest_in_chunks(run: Run, *, after_each: Callable[[], object] = lambda: None) -> Published:
    """Ingest everything new, at most `ingest_max_bytes` at a time; each chunk is published before the next begins.

    Raises:
        AuditFailed: a chunk breaks a rule; chunks before it are published, it and those after it are not.
        Retryable: as `ingest_audit_publish`; published chunks stay published, and the next start continues with the rest.
    """
    done, last = ingest_before_last(run, after_each=after_each)
    written, report, warnings = ingest_audit_publish(last)
    after_each()
    runs = [*done.runs, run.run_id] if last.part else done.runs
    return Published(done.ingested + written, report, done.warnings + warnings, runs)


def ingest_to_branches(run: Run) -> Ingested:
    """Publish every chunk but the last; write the last to its branches, audit it, and return its counts.

    That its audit failed is no error here: the stage `audit` reports it, and holds the rows back.

    Raises:
        AuditFailed, Retryable: as `ingest_in_chunks`, of an earlier chunk.
    """
    _, last = ingest_before_last(run)
    try:
        return ingest_and_audit(last)[0]
    except AuditFailed as exc:
        sys.stderr.write(f"{exc}\n")
        emit_held_back(run.catalog, run.settings, run.run_id, exc.result)
        return written_result(run.catalog, run.run_id)


def ingest_before_last(run: Run, *, after_each: Callable[[], object] = lambda: None) -> tuple[Published, Run]:
    """Publish every chunk but the last; return the totals, and the run for the last chunk, which may be empty.

    If the run is already committed, it was started again: everything new since then is published here, in chunks.

    Raises:
        AuditFailed, Retryable: as `ingest_in_chunks`.
    """
    ensure_tables(run.catalog)
    finish_committed_runs(run.catalog)
    began, at = time.monotonic(), run.now
    done = Published(Ingested(run.run_id))
    again = is_published(run.catalog, run.run_id, run.now)
    new = new_segments(run.catalog, run.archive, run.part)
    for chunk in runs_of(new, run.settings.ingest_max_bytes, run.run_id, again=again):
        if chunk.is_last:
            return done, replace(run, now=at, part=chunk.segments)
        mine = replace(run, run_id=chunk.run_id, now=at, part=chunk.segments)
        written, report, warnings = ingest_audit_publish(mine)
        log.info("chunk published; more to follow", run_id=mine.run_id, segments=written.segments)
        done = Published(done.ingested + written, report, done.warnings + warnings, [*done.runs, mine.run_id])
        at = run.now + timedelta(seconds=time.monotonic() - began)  # a run that seems a day old is dropped as abandoned
        after_each()
    return done, replace(run, now=at, part=[])


def ingest_audit_publish(run: Run) -> tuple[Ingested, str | None, int]:
    """Ingest, audit and publish one run, again and again while other runs are published first.

    Returns the run's counts, the address of its report, and the number of its warnings.
    """
    ensure_tables(run.catalog)
    tries = Retrying(
        retry=retry_if_exception_type(ConcurrentPublish),
        stop=stop_after_attempt(MAX_ATTEMPTS),
        wait=wait_random(0, 2),
        before_sleep=lambda state: log.info(
            "another run was published first; retrying", run_id=run.run_id, tries=state.attempt_number
        ),
        reraise=True,
    )
    began = time.monotonic()
    try:
        for each in tries:
            with each:
                # A distinct instant: the audit result of an earlier try is not about this one.
                mine = replace(run, now=run.now + timedelta(seconds=time.monotonic() - began))
                written, judged = ingest_and_audit(mine)
                publish(run.catalog, run.run_id, partial(may_be_published, run.catalog), must=written.segments > 0)
    finally:
        settle_reports(run.catalog, run.settings)
    emit_lineage(run.catalog, run.settings, run.run_id)
    return written, str(judged.report) if judged else None, len(judged.warnings) if judged else 0
