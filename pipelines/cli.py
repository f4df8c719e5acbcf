"""The command line of every stage: the same for `python -m pipelines <stage>`, spark-submit and Airflow.

The last line on standard output is the result as JSON, with the `seconds` that it took; logs go to standard error. Exit status:
0 done; 1 not done, the message says why; 3 not done, but doing it again is safe and may work; 4 not done, because Spark was not
allowed and is needed.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from redis.exceptions import RedisError

from adapters.log import configure_logging
from adapters.redis import advice
from contracts.errors import ManifoldError, Retryable
from contracts.settings import load_settings
from pipelines.catalog import naming_the_catalog
from pipelines.populate.few import NeedsSpark
from pipelines.stages import STAGES
from pipelines.upkeep.stages import add_options

NOT_DONE, TRY_AGAIN, NEEDS_SPARK = 1, 3, 4
OF_INTERVALS = ("look", "ingest", "run_all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage with the settings of the environment; the exit status."""
    options = _parser().parse_args(arguments)
    stage: str = options.stage
    began = time.monotonic()
    try:
        settings = load_settings()
        configure_logging(f"pipelines-{stage}", json=settings.log_format == "json")
        with naming_the_catalog(settings):
            result = STAGES[stage](settings, options)
    except RedisError as exc:
        sys.stderr.write(f"{advice(settings.redis, exc)}\n")
        return TRY_AGAIN
    except NeedsSpark as exc:
        sys.stderr.write(f"{exc}: this needs Spark\n")
        return NEEDS_SPARK
    except Retryable as exc:
        sys.stderr.write(f"{exc}\n")
        return TRY_AGAIN
    except ManifoldError as exc:
        sys.stderr.write(f"{exc}\n")
        return NOT_DONE
    result = json.dumps(json.loads(result) | {"seconds": round(time.monotonic() - began, 1)})
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
    if stage in OF_INTERVALS:
        parser.add_argument("--from", dest="start", type=_instant, help="segments that began at or after this instant (ISO 8601)")
        parser.add_argument("--to", dest="end", type=_instant, help="and before this one; without both: everything new")
        parser.add_argument("--late", action="store_true", help="also segments that began late_seconds before --from")
    if stage in (*OF_INTERVALS, "rebuild"):
        parser.add_argument("--no-flush", action="store_true", help="leave the recorder's open segments open")
    if stage == "stream":
        parser.add_argument("--until-idle", action="store_true", help="end when nothing is new")
        parser.add_argument("--for-seconds", type=float, help="end after this long")
    if stage == "look":
        parser.add_argument("--dry-run", action="store_true", help="only say what is new")
    if stage == "ingest":
        parser.add_argument("--judge", action="store_true", help="audit the rows too, while Spark runs")
    if stage in ("audit", "populate"):
        parser.add_argument("--without-spark", action="store_true", help="stop with exit status 4 where Spark is needed")
    add_options(parser, stage)


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
