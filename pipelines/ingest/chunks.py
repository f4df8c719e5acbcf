"""Ingests what is new, in chunks of bounded size, oldest first; each chunk is a run that is written, audited and published."""

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

import structlog
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from expectations import Audit
from manifold.archive.segment import Segment
from manifold.lake.catalog import ensure_tables
from manifold.lake.grouping import grouped
from pipelines.ingest.audit import AuditFailed, audit_run
from pipelines.ingest.audit_result import may_be_published
from pipelines.ingest.branches import ConcurrentPublish
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.lineage import emit_held_back, emit_lineage
from pipelines.ingest.planning import Exclusions
from pipelines.ingest.publish import finish_committed_runs, is_published, publish
from pipelines.ingest.quarantine_offenders import offenders, send_alert
from pipelines.ingest.report_states import settle_reports
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import ingest, written_result

OPEN_COST_BYTES = 64 << 10  # minimum size counted for a segment, in bytes: opening one costs as much as reading this many
MAX_ATTEMPTS = 20  # of simultaneous runs, one is published at a time; the others start again
MAX_AUDIT_ROUNDS = 4  # removing offenders may reveal another broken rule
MAX_OFFENDERS = 10  # messages that may be set aside, however small the run
MAX_OFFENDER_SHARE = 0.1  # of the run's messages; above this, the run is held back

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Totals over all chunk runs, and the last run's report."""

    ingested: Ingested
    report: str | None = None
    warnings: int = 0
    runs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The segments of one run."""

    run_id: str
    segments: list[Segment]
    is_last: bool


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
    was_published = is_published(run.catalog, run.run_id, run.now)
    new = new_segments(run.catalog, run.archive, run.part)
    for chunk in runs_of(new, run.settings.ingest_max_bytes, run.run_id, was_published=was_published):
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


def ingest_and_audit(run: Run) -> tuple[Ingested, Audit | None]:
    """Write the run to its branches and audit it; if it breaks a rule, do so again without the messages behind the bad rows.

    This is bounded: if much of a run breaks a rule, the cause is the rule, the code or the storage rather than the messages, and
    the whole run is held back. The audit is None if nothing was written or the run is already committed.

    Raises:
        AuditFailed: the run breaks rules, and the offending messages are too many or cannot be identified.
    """
    aside = Exclusions()
    for round_ in range(MAX_AUDIT_ROUNDS):
        # A distinct instant, so that rows of `quality_results` distinguish the rounds.
        once = replace(run, now=run.now + timedelta(milliseconds=round_))
        written = ingest(once, aside)
        try:
            judged = audit_run(once)
        except AuditFailed as exc:
            more = aside | offenders(run, exc.result)
            if (
                round_ + 1 == MAX_AUDIT_ROUNDS
                or len(more) == len(aside)
                or len(more) > max(MAX_OFFENDERS, MAX_OFFENDER_SHARE * sum(written.read.values()))
            ):
                emit_held_back(run.catalog, run.settings, run.run_id, exc.result)
                raise
            aside = more
            log.warning("run breaks a rule; rewriting it without the offending messages", run_id=run.run_id, aside=len(aside))
        else:
            if aside:
                send_alert(run.settings, run.run_id, aside)
            return written, judged
    raise AssertionError("the last round returns or raises")


def in_chunks(segments: Iterable[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """Group the segments, in order, into lists of at most `max_bytes` with at least one segment each."""
    return grouped(segments, lambda segment: max(segment.size, OPEN_COST_BYTES), max_bytes)


def runs_of(segments: Iterable[Segment], max_bytes: int, run_id: str, *, was_published: bool = False) -> Iterator[Chunk]:
    """Yield the chunks as runs. The last is `run_id` itself, which the caller awaits; other ids derive from the segments.

    So an interrupted run resumes where it stopped, and finds the chunk that it had begun. With `was_published`, `run_id`
    takes nothing more, so all chunks get derived ids.
    """
    before: list[Segment] | None = None
    for chunk in in_chunks(segments, max_bytes):
        if before is not None:
            yield Chunk(_named(run_id, before), before, is_last=False)
        before = chunk
    if before is not None:
        yield Chunk(_named(run_id, before) if was_published else run_id, before, is_last=not was_published)


def _named(run_id: str, segments: list[Segment]) -> str:
    paths = "\n".join(segment.path for segment in segments)
    return f"{run_id}_{hashlib.sha256(paths.encode()).hexdigest()[:8]}"
