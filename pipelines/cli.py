"""The command line of every stage: the same for `python -m pipelines <stage>`, spark-submit and Airflow.

The last line on standard output is the result as JSON; logs go to standard error. Exit status: 0 done; 1 not done, the message
says why; 3 not done, but doing it again is safe and may work.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession
from redis.exceptions import RedisError

from adapters.lake import ensure_tables
from adapters.log import configure_logging
from contracts.errors import ManifoldError, Permanent, Retryable
from contracts.settings import Settings, load_settings
from pipelines.archive import Interval
from pipelines.audit import audit_run
from pipelines.catalog import await_catalog, naming_the_catalog
from pipelines.flush import flush
from pipelines.ingest import ingest
from pipelines.populate import populate
from pipelines.publish import Overtaken, publish
from pipelines.run_all import ingest_audit_publish, new_run_id, rebuild, run_all
from pipelines.session import session

STAGES = ("ingest", "audit", "publish", "populate", "rebuild", "run_all")
NOT_DONE, TRY_AGAIN = 1, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage with the settings of the environment; the exit status."""
    options = _parser().parse_args(arguments)
    stage: str = options.stage
    try:
        settings = load_settings()
        configure_logging(f"pipelines-{stage}", json=settings.log_format == "json")
        with naming_the_catalog(settings):
            result = _run(stage, settings, options)
    except RedisError as exc:
        sys.stderr.write(
            f"Redis: {exc}; see that it runs and that MANIFOLD_REDIS_URL or MANIFOLD_REDIS_PORT names it, then run this again\n"
        )
        return TRY_AGAIN
    except Retryable as exc:
        sys.stderr.write(f"{exc}\n")
        return TRY_AGAIN
    except ManifoldError as exc:
        sys.stderr.write(f"{exc}\n")
        return NOT_DONE
    sys.stdout.write(result + "\n")
    if options.result:
        options.result.write_text(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines")
    stages = parser.add_subparsers(dest="stage", required=True)
    for stage in STAGES:
        _add_options(stages.add_parser(stage), stage)
    return parser


def _add_options(parser: argparse.ArgumentParser, stage: str) -> None:
    named = stage in ("audit", "publish")
    parser.add_argument("--run-id", required=named, help="the run; stages of one run have it in common")
    parser.add_argument("--result", type=Path, help="a file that gets the result too")
    if stage in ("ingest", "run_all"):
        parser.add_argument("--from", dest="start", type=_instant, help="segments that began at or after this instant (ISO 8601)")
        parser.add_argument("--to", dest="end", type=_instant, help="and before this one; without both: everything new")
        parser.add_argument("--late", action="store_true", help="also segments that began late_seconds before --from")
    if stage in ("ingest", "run_all", "rebuild"):
        parser.add_argument("--no-flush", action="store_true", help="leave the recorder's open segments open")


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _interval(settings: Settings, options: argparse.Namespace) -> Interval | None:
    if options.start is None and options.end is None:
        return None
    if options.start is None or options.end is None:
        raise Permanent("--from and --to belong together; leave both out for everything new")
    start = options.start - timedelta(seconds=settings.late_seconds) if options.late else options.start
    try:
        return Interval(start, options.end)
    except ValueError as exc:
        raise Permanent(str(exc)) from exc


def _run(stage: str, settings: Settings, options: argparse.Namespace) -> str:
    if stage == "run_all":
        interval = _interval(settings, options)
        return run_all(settings, run_id=options.run_id, interval=interval, flush_first=not options.no_flush).to_json()
    if stage == "rebuild":
        return rebuild(settings, flush_first=not options.no_flush).to_json()
    catalog, now = await_catalog(settings), datetime.now(UTC)
    ensure_tables(catalog)
    if stage == "publish":
        return _publish(settings, catalog, options.run_id, now)
    interval = _interval(settings, options) if stage == "ingest" else None
    if stage == "ingest" and not options.no_flush:
        flush(settings)
    with session(settings, stage) as spark:
        return _stage(stage, spark, catalog, settings, options.run_id, now, interval)


def _stage(
    stage: str,
    spark: SparkSession,
    catalog: Catalog,
    settings: Settings,
    run_id: str | None,
    now: datetime,
    interval: Interval | None,
) -> str:
    if stage == "ingest":
        return ingest(spark, catalog, settings, run_id=run_id or new_run_id(now), now=now, interval=interval).to_json()
    if stage == "audit":
        judged = audit_run(spark, catalog, settings, run_id=run_id or "", now=now)
        warnings = len(judged.warnings) if judged else 0
        return json.dumps({"run_id": run_id, "report": str(judged.report) if judged else None, "warnings": warnings})
    return populate(spark, catalog, settings, now=now).to_json()


def _publish(settings: Settings, catalog: Catalog, run_id: str, now: datetime) -> str:
    """Publication needs no Spark, unless another run was faster: then this one is done again here, from its segments on."""
    try:
        published = publish(catalog, run_id)
    except Overtaken as exc:
        sys.stderr.write(f"{exc}; doing so\n")
        with session(settings, "publish") as spark:
            ingest_audit_publish(spark, catalog, settings, run_id=run_id, now=now, interval=None)
        published = True
    return json.dumps({"run_id": run_id, "published": published})
