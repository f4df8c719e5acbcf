"""The command line of every stage: the same for `python -m pipelines <stage>`, spark-submit and Airflow.

The last line on standard output is the result as JSON, with its duration in `seconds`; logs go to standard error. Exit status:
0 means success; 3, a failure after which a retry is safe and may succeed; 5, a failure that a retry would only repeat. Every
other status, such as Python's own 1, means an unforeseen error, which may be transient, so the job may be retried.

The result is also written to the file that `--result` names, even if the job failed. The result of a failed job has the fields
`error`, its message, and `again`, whether a retry may succeed: it is false with status 5.
Spark's cluster deploy mode does not return the exit status to the process that submitted the job, but it can read the result.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from redis.exceptions import RedisError

from manifold.contracts.errors import ManifoldError, Permanent
from manifold.contracts.storage import AWS
from manifold.lake.files import Files
from manifold.runtime.log import configure_logging
from manifold.runtime.redis import advice
from manifold.settings import Settings, load_settings
from pipelines.catalog import naming_the_catalog
from pipelines.stages import Stage, campaigns, ingest, maintenance

DONE, UNFORESEEN, TRY_AGAIN, PERMANENT = 0, 1, 3, 5
STAGES: dict[str, Stage] = {}
for _module in (ingest, maintenance, campaigns):
    STAGES |= {name: value for name, value in vars(_module).items() if isinstance(value, Stage)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage with the settings from the environment, and return the exit status."""
    options = make_parser().parse_args(arguments)
    began = time.monotonic()
    settings: Settings | None = None
    try:
        overrides = {"lineage_parent": options.lineage_parent} if options.lineage_parent else {}
        settings = load_settings(**overrides)
        configure_logging(f"pipelines-{options.stage}", json=settings.log_format == "json")
        with naming_the_catalog(settings):
            result: dict[str, Any] = json.loads(STAGES[options.stage].run(settings, options))
        status = DONE
    except Exception as exc:  # noqa: BLE001  # the result reports every error
        status, error = _status_and_message(exc, settings)
        sys.stderr.write(f"{error}\n")
        result = {"error": error, "again": status != PERMANENT}
    result_line = json.dumps(result | {"seconds": round(time.monotonic() - began, 1)})
    if status == DONE:
        sys.stdout.write(result_line + "\n")
    if options.result:
        _write_result(options.result, result_line, settings)
    return status


def _status_and_message(exc: Exception, settings: Settings | None) -> tuple[int, str]:
    """Return the exit status of a job that failed with `exc`, and a message. The traceback of an unforeseen error is printed."""
    match exc:
        case RedisError() if settings is not None:
            return TRY_AGAIN, advice(settings.redis, exc)
        case Permanent():
            return PERMANENT, str(exc)
        case ManifoldError():
            return TRY_AGAIN, str(exc)
    # Any other error, or an error of Redis before the settings were read.
    traceback.print_exception(exc)
    return UNFORESEEN, f"unforeseen: {type(exc).__name__}: {' '.join(str(exc).split())[:500]}; doing it again is safe"


def _write_result(url: str, result: str, settings: Settings | None) -> None:
    """Write the result to `url`, which may also be a path. A failed write is only reported, because the job's work is done.

    If the settings could not be read (`settings` is None), a URL s3:// is taken to be one of AWS.
    """
    address = url if "://" in url else Path(url).absolute().as_uri()
    folder, _, name = address.rpartition("/")
    try:
        Files(folder, settings.s3 if settings else AWS).write(name, result.encode())
    except (OSError, ValueError) as exc:
        sys.stderr.write(f"the result could not be left at {url}: {exc}; see that it can be written from here\n")


class _Parser(argparse.ArgumentParser):
    """A parser that exits with status `PERMANENT`, because a retry with the same arguments would fail again."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit."""
        self.exit(PERMANENT, f"{self.prog}: {message}\n")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser, which has one subcommand for each stage, with the common options and the stage's own options."""
    parser = _Parser(prog="python -m pipelines")
    stages = parser.add_subparsers(dest="stage", required=True)
    for name, stage in STAGES.items():
        summary = (stage.run.__doc__ or "").partition("\n")[0]
        subparser = stages.add_parser(name, help=summary, description=summary)
        subparser.add_argument(
            "--result", metavar="FILE", help="also write the result to this file or URL (file://, s3://), even if the job fails"
        )
        subparser.add_argument("--lineage-parent", metavar="RUN", help="the run that starts this one: <namespace>/<job>/<run id>")
        for add_options in stage.options:
            add_options(subparser)
    return parser
