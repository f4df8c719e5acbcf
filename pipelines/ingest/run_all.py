"""Runs every stage in one process: `python -m pipelines run_all`, `manifold ingest`, `manifold rebuild`."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from manifold.archive.flush import flush
from manifold.archive.segment import Interval
from manifold.lake.catalog import ensure_tables
from manifold.runtime.alert import alert
from manifold.settings import Settings
from pipelines.catalog import await_catalog, naming_the_catalog
from pipelines.ingest.audit import AuditFailed
from pipelines.ingest.backlog import Published, ingest_in_runs
from pipelines.ingest.discover import discover
from pipelines.ingest.run import Ingested, Run, new_run_id
from pipelines.ingest.trends import refresh_trends
from pipelines.ingest.write import written_result
from pipelines.lineage import emits_lineage
from pipelines.populate.load import Populated, populate
from pipelines.spark.session import GREAT_EXPECTATIONS, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a whole run."""

    run_id: str
    ingested: Ingested
    populated: Populated | None  # None if populate was not requested
    report: str | None  # address of the audit report; None if nothing was written
    warnings: int
    runs: list[str] = field(default_factory=list)  # ids of the published runs; several if much was new (`ingest_max_bytes`)
    held_back: str | None = None  # only of a rebuild: why new segments were not published

    def to_json(self) -> str:
        """One line of JSON, for logs and for the process that started the job."""
        return json.dumps(asdict(self))


def run_all(
    settings: Settings,
    *,
    run_id: str | None = None,
    interval: Interval | None = None,
    flush_first: bool = True,
    with_populate: bool = True,
    everything: bool = False,
) -> RunResult:
    """Ingest, audit, publish and populate. Idempotent.

    Args:
        settings: the settings.
        run_id: the id of the run; None: generate one.
        interval: the part of the archive to ingest; None: the whole archive.
        flush_first: have the ingress services close their open segments first, so that these are ingested too.
        with_populate: offer pending entries to the queues afterwards.
        everything: rebuild the queues: offer all pending entries, and mark the queues as loaded.

    Raises:
        AuditFailed: the run breaks a rule of severity `error`; main is unchanged. A rebuild does not raise this: it populates the
            queues from the rows that main already has.
        Retryable: a service was unavailable, or other runs were published first; start it again.
    """
    now = datetime.now(UTC)
    run_id = run_id or new_run_id(now)
    if flush_first:
        flush(settings)
    catalog = await_catalog(settings)
    with naming_the_catalog(settings):
        ensure_tables(catalog)
        discovered = discover(catalog, settings, now=now, interval=interval)
        if not discovered.segments and not with_populate:  # nothing to do on Spark
            return RunResult(run_id, written_result(catalog, run_id), populated=None, report=None, warnings=0)

    def ingest_all(spark: "SparkSession") -> tuple[Published, str | None]:
        """Ingest all new segments; return the totals, and why a run was held back (None: all were published)."""
        try:
            return ingest_in_runs(Run(spark, catalog, settings, run_id, now, interval)), None
        except AuditFailed as exc:
            if not everything:
                raise
            # A rebuild must not leave the queues empty, so they are filled from main now, and from the held-back run later.
            alert(settings, "held back", f"the queues are filled from what was published before: {exc}", run_id=run_id)
            return Published(Ingested(run_id), str(exc.result.report)), str(exc)

    job = "rebuild" if everything else "ingest"
    audit_modules = GREAT_EXPECTATIONS if discovered.segments else ()
    spark_session = session(settings, job, java_options=discovered.java_options, meanwhile=audit_modules, size=discovered.bytes)
    with refresh_trends(settings), naming_the_catalog(settings), spark_session as spark:
        done, held_back = ingest_all(spark)
        populated = populate(spark, catalog, settings, now=now, everything=everything) if with_populate else None
    return RunResult(run_id, done.ingested, populated, done.report, done.warnings, done.runs, held_back)


@emits_lineage("rebuild", reads=["archive"], writes=["queues"])
def rebuild(settings: Settings, *, flush_first: bool = True) -> RunResult:
    """Ingest the whole archive, queue all pending entries, and mark the queues as loaded."""
    return run_all(settings, flush_first=flush_first, everything=True)
