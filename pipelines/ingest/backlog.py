"""Ingests new segments in runs of bounded size, oldest first. Each run is written, audited and published before the next."""

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
from pipelines.ingest.audit import AuditFailed, audit_run, may_be_published
from pipelines.ingest.branches import Overtaken
from pipelines.ingest.ledger import new_segments
from pipelines.ingest.lineage import emit_held_back, emit_lineage
from pipelines.ingest.planning import Offenders
from pipelines.ingest.publish import finish_committed_runs, is_published, publish
from pipelines.ingest.quarantine_offenders import offenders_of, send_alert
from pipelines.ingest.report_states import update_report_states
from pipelines.ingest.run import Ingested, Run
from pipelines.ingest.write import ingest, written_result

OPEN_COST_BYTES = 64 << 10  # a smaller segment counts as this many bytes: opening it takes as long as reading them
MAX_PUBLISH_ATTEMPTS = 20  # attempts at a run; when several runs compete, only one is published and the others start again
MAX_PUBLISH_WAIT_S = 2  # longest wait between two attempts; it is random, so that competing runs part
MAX_AUDIT_ROUNDS = 4  # audits in one attempt; without the offenders of a round, the run may break another rule
# Between the instants of two rounds, which distinguish the rounds in `quality_results`.
AUDIT_ROUND_STEP = timedelta(milliseconds=1)
# A run with more offenders than both limits is held back.
MAX_OFFENDERS = 10  # messages and files
MAX_OFFENDER_SHARE = 0.1  # share of the run's messages

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Published:
    """Totals over all published runs, and the address of the last run's report."""

    ingested: Ingested
    report: str | None = None
    warnings: int = 0
    runs: list[str] = field(default_factory=list)  # ids of the published runs


def ingest_in_runs(run: Run, *, after_each: Callable[[], object] = lambda: None) -> Published:
    """Ingest all new segments in runs of at most `ingest_max_bytes`; publish each run before the next begins.

    The last run has the run id of `run`; `runs_of` explains the ids of the others. `after_each` is called after every run; if it
    raises, no further run begins.

    Raises:
        AuditFailed: a run breaks a rule. Earlier runs are published; this run and later ones are not.
        Retryable: every attempt at a run was overtaken by other runs, another process works at the same run, or a service is
            unavailable. Earlier runs stay published, and the next call continues with the remaining segments.
    """
    earlier, last = ingest_before_last(run, after_each=after_each)
    written, report, warnings = ingest_audit_publish(last)
    after_each()
    published_ids = list(earlier.runs)
    if last.part:  # without segments, nothing is published
        published_ids.append(last.run_id)
    return Published(earlier.ingested + written, report, earlier.warnings + warnings, published_ids)


def ingest_to_branches(run: Run) -> Ingested:
    """Publish every run except the last; write the last run to its branches, audit it, and return its counts.

    If the last run fails its audit, no error is raised: the stage `audit` reports the failure and holds the rows back.

    Raises:
        AuditFailed, Retryable: an earlier run failed; see `ingest_in_runs`.
    """
    _, last = ingest_before_last(run)
    try:
        written, _ = ingest_and_audit(last)
    except AuditFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return written_result(run.catalog, run.run_id)
    return written


def ingest_before_last(run: Run, *, after_each: Callable[[], object] = lambda: None) -> tuple[Published, Run]:
    """Publish every run except the last; return the totals, and the last run, which is still to be ingested.

    If `run` is already committed, it was started again: all segments that are new since then are published here, in runs with
    ids of their own, and the returned run has no segments. `after_each` is called after every run that is published here.

    Raises:
        AuditFailed, Retryable: see `ingest_in_runs`.
    """
    ensure_tables(run.catalog)
    finish_committed_runs(run.catalog)
    started = time.monotonic()
    now = run.now
    done = Published(Ingested(run.run_id))
    was_published = is_published(run.catalog, run.run_id, run.now)
    new = new_segments(run.catalog, run.archive, run.part)
    for run_id, segments in runs_of(new, run.settings.ingest_max_bytes, run.run_id, was_published=was_published):
        if run_id == run.run_id:  # only the last run has this id
            return done, replace(run, now=now, part=segments)
        written, report, warnings = ingest_audit_publish(replace(run, run_id=run_id, now=now, part=segments))
        log.info("run published; more to follow", run_id=run_id, segments=written.segments)
        done = Published(done.ingested + written, report, done.warnings + warnings, [*done.runs, run_id])
        # With the first run's time, a late run would seem a day old, and would be dropped as abandoned.
        now = run.now + timedelta(seconds=time.monotonic() - started)
        after_each()
    return done, replace(run, now=now, part=[])  # nothing was new, or `run` was committed before


def ingest_audit_publish(run: Run) -> tuple[Ingested, str | None, int]:
    """Ingest, audit and publish one run; start it again while other runs are published first (`MAX_PUBLISH_ATTEMPTS`).

    Returns the run's counts, the address of its report (None if nothing was audited), and the number of its warnings.
    """
    ensure_tables(run.catalog)
    tries = Retrying(
        retry=retry_if_exception_type(Overtaken),
        stop=stop_after_attempt(MAX_PUBLISH_ATTEMPTS),
        wait=wait_random(0, MAX_PUBLISH_WAIT_S),
        before_sleep=lambda state: log.info(
            "another run was published first, or another job closed this one; ingesting again",
            run_id=run.run_id,
            attempts=state.attempt_number,
        ),
        reraise=True,
    )
    started = time.monotonic()
    try:
        for attempt in tries:
            with attempt:
                # Each attempt has its own instant, because audit results and ledger rows are matched by it.
                attempt_run = replace(run, now=run.now + timedelta(seconds=time.monotonic() - started))
                written, audit = ingest_and_audit(attempt_run)
                publish(run.catalog, run.run_id, partial(may_be_published, run.catalog), must=written.segments > 0)
    finally:
        update_report_states(run.catalog, run.settings)  # of this attempt, and of attempts that were overtaken or killed
    emit_lineage(run.catalog, run.settings, run.run_id)
    if audit is None:
        return written, None, 0
    return written, str(audit.report), len(audit.warnings)


def ingest_and_audit(run: Run) -> tuple[Ingested, Audit | None]:
    """Write the run to its branches and audit it; if it breaks a rule, write it again without the offending messages.

    If too many messages offend, the whole run is held back: the cause is then the rule, the code or the storage rather than the
    messages. The returned audit is None if nothing was written or the run is already committed.

    Raises:
        AuditFailed: the run breaks rules, and the offending messages are too many or cannot be identified.
    """
    offenders = Offenders()
    for round_number in range(MAX_AUDIT_ROUNDS):
        round_run = replace(run, now=run.now + round_number * AUDIT_ROUND_STEP)
        written = ingest(round_run, offenders)
        try:
            audit = audit_run(round_run)
        except AuditFailed as exc:
            all_offenders = offenders | offenders_of(run, exc.result)
            is_last_round = round_number + 1 == MAX_AUDIT_ROUNDS
            has_no_new_offender = len(all_offenders) == len(offenders)
            has_too_many = len(all_offenders) > max(MAX_OFFENDERS, MAX_OFFENDER_SHARE * sum(written.read.values()))
            if is_last_round or has_no_new_offender or has_too_many:
                emit_held_back(run.catalog, run.settings, run.run_id, exc.result)
                raise
            offenders = all_offenders
            log.warning(
                "run breaks rules of severity error; writing it again without the offending messages and files",
                run_id=run.run_id,
                rules=[f"{finding.table}: {finding.rule}" for finding in exc.result.failures],
                offending_messages=len(offenders.messages),
                offending_files=len(offenders.files),
            )
        else:
            if offenders:
                send_alert(run.settings, run.run_id, offenders)
            return written, audit
    raise AssertionError("the last round has neither returned nor raised")


def groups_of(segments: Iterable[Segment], max_bytes: int) -> Iterator[list[Segment]]:
    """Group the segments, in order, into lists of at most `max_bytes`. A larger segment is a list of its own."""
    return grouped(segments, lambda segment: max(segment.size, OPEN_COST_BYTES), max_bytes)


def runs_of(
    segments: Iterable[Segment], max_bytes: int, run_id: str, *, was_published: bool = False
) -> Iterator[tuple[str, list[Segment]]]:
    """Divide the segments into runs; yield the id and the segments of each.

    The last run gets `run_id` itself, because the caller awaits that run. The ids of earlier runs derive from their segments, so
    that an interrupted ingest finds the run that it had begun. With `was_published`, `run_id` is already committed and takes no
    more segments, so every run gets a derived id.
    """
    pending: list[Segment] | None = None  # the previous group; whether it is the last is not known yet
    for group in groups_of(segments, max_bytes):
        if pending is not None:
            yield _derived_run_id(run_id, pending), pending
        pending = group
    if pending is not None:
        last_id = _derived_run_id(run_id, pending) if was_published else run_id
        yield last_id, pending


def _derived_run_id(run_id: str, segments: list[Segment]) -> str:
    paths = "\n".join(segment.path for segment in segments)
    return f"{run_id}_{hashlib.sha256(paths.encode()).hexdigest()[:8]}"
