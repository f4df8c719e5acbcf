"""The audit of a run, between writing and publishing: `python -m pipelines audit --run-id …`."""

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

import pyarrow as pa
import structlog

from expectations import Audit, NotInArrow, audit
from manifold.contracts.errors import Permanent
from manifold.contracts.tables import DATA, META, SEGMENTS
from manifold.lake.reports import open_reports
from pipelines.ingest.arrow_audit import ALONE, BESIDE_SPARK, NOTHING, Bounds, files_of, lookups, rows_of
from pipelines.ingest.branches import COUNTED, RUN_ID, head_of, properties_of
from pipelines.ingest.publish import PinnedSnapshot, counts, pins_in
from pipelines.ingest.run import Run
from pipelines.ingest.spark_audit import ReferenceTables, added, or_on_spark
from pipelines.ingest.verdict import keep_verdict
from pipelines.spark.needed import NeedsSpark

TOGETHER = (DATA, META)  # the days of both tell where in the payloads something is looked for

log = structlog.get_logger(__name__)


class AuditFailed(Permanent):
    """The run breaks rules of severity `error`. It stays on its branches, and main is as it was."""

    def __init__(self, result: Audit) -> None:
        super().__init__("\n".join([str(result), *map(str, result.failures)]))
        self.result = result


def audit_run(run: Run) -> Audit | None:
    """Judge what the run has written; None if it has written nothing, or counts already.

    Raises:
        AuditFailed: it must not be published; the message names the rules and some of the rows.
        NeedsSpark: the run has none, and its rows are too many, or a rule has no other form.
    """
    catalog, settings, run_id = run.catalog, run.settings, run.run_id
    head = head_of(catalog, SEGMENTS, run_id)
    if head is None or properties_of(head).get(RUN_ID) != run_id or counts(catalog.load_table(SEGMENTS.identifier), run_id):
        log.info("run has nothing to judge", run_id=run_id)
        return None
    written = [*pins_in(head), PinnedSnapshot(SEGMENTS, head.snapshot_id)]
    judge = partial(
        audit,
        run_id=run_id,
        as_of=run.now,
        reports=open_reports(settings),
        keep=settings.report_max,
        data_wait=timedelta(seconds=settings.data_wait_seconds),
        counted=json.loads(properties_of(head).get(COUNTED, "{}")),
        keep_results=partial(keep_verdict, catalog, head),
    )
    try:
        result = _judged(judge, run, written, ALONE if run.spark is None else BESIDE_SPARK)
    except NotInArrow as exc:
        if run.spark is None:
            raise NeedsSpark(str(exc)) from exc
        result = _judged(judge, run, written, NOTHING)
    for warning in result.warnings:
        log.warning("run breaks a rule", run_id=run_id, rule=str(warning))
    if not result.passed:
        raise AuditFailed(result)
    log.info("run is judged", run_id=run_id, passed=result.passed, warnings=len(result.warnings), report=str(result.report))
    return result


def _judged(judge: Callable[..., Audit], run: Run, written: Sequence[PinnedSnapshot], bounds: Bounds) -> Audit:
    """The judgement of what the run adds: of tables within the bounds in this process, of the others on Spark.

    Raises:
        NeedsSpark: the run has none, and there is too much to look at; nothing has been written.
        NotInArrow: a rule has no other form than Spark's; nothing has been written.
    """
    few: dict[str, pa.Table] = {}
    many: list[PinnedSnapshot] = []
    for pinned in written:
        try:
            few[pinned.table.name] = rows_of(run.catalog, pinned, bounds)
        except NeedsSpark:
            if run.spark is None:
                raise
            many.append(pinned)
    in_files = {pinned.table.name: rows for pinned in many if (rows := files_of(run.catalog, pinned, bounds)) is not None}
    many = [pinned for pinned in many if pinned.table.name not in in_files]
    if any(pinned.table in TOGETHER for pinned in many):
        many += [pinned for pinned in written if pinned.table in TOGETHER and few.pop(pinned.table.name, None) is not None]
    found = lookups(run.catalog, written, few, bounds)
    if run.spark is None:
        return judge(few, references={}, lookups=found)
    frames = {pinned.table.name: added(run, run.spark, pinned) for pinned in many}
    whole = ReferenceTables(run, run.spark, written, few | frames)
    asked = {table: or_on_spark(find, whole, table) for table, find in found.items()}
    try:
        return judge(few | in_files | frames, references=whole, lookups=asked)
    finally:
        if META.name in frames:
            frames[META.name].unpersist()
