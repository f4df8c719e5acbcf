"""The stages of the command line, each with what it needs: Spark's library alone takes a second that others need not wait.

Each takes the settings and the options of the command line, and returns its result as JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog

from adapters.lake import ensure_tables
from archive.segment import Interval, recent
from archive.store import Archive
from contracts.errors import Permanent
from contracts.settings import Settings
from pipelines.catalog import await_catalog
from pipelines.upkeep.stages import HOUSEKEEPING

Stage = Callable[[Settings, argparse.Namespace], str]


def look(settings: Settings, options: argparse.Namespace) -> str:
    """What there is to do."""
    from archive.flush import flush
    from pipelines.ingest.look import look as look_at

    if not options.no_flush:
        flush(settings)
    interval = _interval(settings, options)
    return look_at(_lake(settings), settings, now=_now(), interval=interval, dry_run=options.dry_run).to_json()


def ingest(settings: Settings, options: argparse.Namespace) -> str:
    """Archive to branches; with `--judge` the audit too, while Spark runs: the stage `audit` then finds its verdict."""
    from archive.flush import flush
    from pipelines.ingest.aside import ingest_and_judge
    from pipelines.ingest.audit import AuditFailed
    from pipelines.ingest.run_all import ingest_before_last, new_run_id
    from pipelines.ingest.write import ingest as write
    from pipelines.ingest.write import written_result
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval, catalog, now = _interval(settings, options), _lake(settings), _now()
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    with session(settings, "ingest", meanwhile=GREAT_EXPECTATIONS if options.judge else ()) as spark:
        _, part, now = ingest_before_last(spark, catalog, settings, run_id=run_id, now=now, part=interval)
        if not options.judge:
            return write(spark, catalog, settings, run_id=run_id, now=now, part=part).to_json()
        try:
            result, _ = ingest_and_judge(spark, catalog, settings, run_id=run_id, now=now, part=part)
        except AuditFailed as exc:  # the rows are written all the same; the stage `audit` holds them back
            sys.stderr.write(f"{exc}\n")
            result = written_result(catalog, run_id)
    return result.to_json()


def audit(settings: Settings, options: argparse.Namespace) -> str:
    """Judge the run, unless `ingest --judge` has done so and it passed."""
    from pipelines.ingest.verdict import passed_already

    catalog, run_id = _lake(settings), options.run_id
    known = passed_already(catalog, settings, run_id)
    if known is not None:
        return json.dumps({"run_id": run_id, **known})
    _require_spark(options, f"run {run_id} is not judged yet, or did not pass")
    from pipelines.ingest.audit import audit_run
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    with session(settings, "audit", meanwhile=GREAT_EXPECTATIONS) as spark:
        judged = audit_run(spark, catalog, settings, run_id=run_id, now=_now())
    warnings = len(judged.warnings) if judged else 0
    return json.dumps({"run_id": run_id, "report": str(judged.report) if judged else None, "warnings": warnings})


def publish(settings: Settings, options: argparse.Namespace) -> str:
    """Publication needs no Spark, unless another run was faster: then this one is done again here, from its segments on.

    So it is where nobody has judged what lies on its branches: an earlier try was doing it again, and was killed.
    """
    from pipelines.ingest.publish import Overtaken
    from pipelines.ingest.publish import publish as move
    from pipelines.ingest.verdict import passed_already

    catalog, run_id = _lake(settings), options.run_id
    try:
        if passed_already(catalog, settings, run_id) is None:
            raise Overtaken(f"run {run_id} has not passed the audit as it lies there; ingest it again")
        published = move(catalog, run_id)
    except Overtaken as exc:
        sys.stderr.write(f"{exc}; doing so\n")
        _do_again(catalog, settings, run_id)
        published = True
    return json.dumps({"run_id": run_id, "published": published})


def _do_again(catalog: Catalog, settings: Settings, run_id: str) -> None:
    from pipelines.ingest.aside import segments_of
    from pipelines.ingest.run_all import ingest_audit_publish
    from pipelines.spark.session import session

    mine = Archive(settings.archive, settings.s3).find(path for path, _ in segments_of(catalog, run_id))
    if not mine:  # killed before it had written which ones they are
        raise Permanent(f"run {run_id} was begun again and broken off, and nothing says what it takes: clear its task `ingest`")
    with session(settings, "publish") as spark:
        ingest_audit_publish(spark, catalog, settings, run_id=run_id, now=_now(), part=mine)


def populate(settings: Settings, options: argparse.Namespace) -> str:
    """Lake to queues; little is done without Spark. Queues that are not loaded are left alone: they need a rebuild."""
    from pipelines.populate.few import NeedsSpark
    from pipelines.populate.load import populate as offer

    catalog = _lake(settings)
    try:
        done = offer(None, catalog, settings, now=_now())
    except NeedsSpark as exc:
        _require_spark(options, str(exc))
        from pipelines.spark.session import session

        with session(settings, "populate") as spark:
            done = offer(spark, catalog, settings, now=_now())
    if done.problem:
        raise Permanent(done.problem)  # so the task is red, and somebody is told: nothing else fills the queues
    return done.to_json()


def rebuild(settings: Settings, options: argparse.Namespace) -> str:
    """Everything pending into empty queues."""
    from pipelines.ingest.run_all import rebuild as run

    done = run(settings, flush_first=not options.no_flush)
    if done.populated and done.populated.problem:
        raise Permanent(done.populated.problem)
    return done.to_json()


def run_all(settings: Settings, options: argparse.Namespace) -> str:
    """Every stage of an ingest in one application."""
    from pipelines.ingest.run_all import run_all as run

    interval = _interval(settings, options)
    return run(settings, run_id=options.run_id, interval=interval, flush_first=not options.no_flush).to_json()


def stream(settings: Settings, options: argparse.Namespace) -> str:
    """The stages of an ingest in micro-batches, again and again."""
    from pipelines.stream.query import stream as run

    return run(settings, until_idle=options.until_idle, for_s=options.for_seconds).to_json()


STAGES: dict[str, Stage] = {
    "look": look,
    "ingest": ingest,
    "audit": audit,
    "publish": publish,
    "populate": populate,
    "rebuild": rebuild,
    "run_all": run_all,
    "stream": stream,
    **HOUSEKEEPING,
}


def _require_spark(options: argparse.Namespace, why: str) -> None:
    from pipelines.populate.few import NeedsSpark

    if options.without_spark:
        raise NeedsSpark(why)


def _lake(settings: Settings) -> Catalog:
    catalog = await_catalog(settings)
    ensure_tables(catalog)
    return catalog


def _now() -> datetime:
    return datetime.now(UTC)


def _interval(settings: Settings, options: argparse.Namespace) -> Interval | None:
    if options.recent:
        if options.start or options.end:
            raise Permanent("--recent says how far back a run looks; leave it out where --from and --to do")
        return recent(settings, _now())
    if options.start is None and options.end is None:
        return None
    if options.start is None or options.end is None:
        raise Permanent("--from and --to belong together; leave both out for everything new")
    try:
        return Interval(options.start, options.end)
    except ValueError as exc:
        raise Permanent(str(exc)) from exc
