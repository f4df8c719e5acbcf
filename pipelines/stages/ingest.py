"""Write what is new in the archive to the branches of a run; with `--judge` audit it too, while Spark runs."""

import argparse
import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from manifold.settings import Settings
from pipelines.arguments import add_interval, add_no_flush, add_run_id, interval_of
from pipelines.spark.needed import NeedsSpark, add_without_spark, is_small

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from pipelines.ingest.run import Ingested, Run


def options(parser: argparse.ArgumentParser) -> None:
    """Which part of the archive, whether it is judged at once, and how far a run without Spark goes."""
    add_run_id(parser)
    add_interval(parser)
    add_no_flush(parser)
    add_without_spark(parser)
    parser.add_argument("--judge", action="store_true", help="audit the rows too, while Spark runs")
    parser.add_argument(
        "--to-the-end",
        action="store_true",
        help="where no Spark may start: audit, publish and populate too; the result has theirs",
    )


def run(settings: Settings, options: argparse.Namespace) -> str:
    """The numbers of the run, as JSON. A bad verdict is no error here: the stage `audit` finds it, and holds the rows back.

    `done` has the results of later stages that this process did as well, by their names.
    """
    from manifold.archive.flush import flush
    from pipelines.catalog import open_lake
    from pipelines.ingest.run import Run
    from pipelines.ingest.run_all import ingest_before_last, new_run_id
    from pipelines.ingest.trends import trends_if_held_back
    from pipelines.ingest.write import ingest
    from pipelines.spark.session import GREAT_EXPECTATIONS, session

    interval, catalog, now = interval_of(settings, options), open_lake(settings), datetime.now(UTC)
    if not options.no_flush:
        flush(settings)
    run_id = options.run_id or new_run_id(now)
    judging = GREAT_EXPECTATIONS if options.judge else ()
    if options.without_spark:
        small = Run(None, catalog, settings, run_id, now, interval)
        _require_small(small)
        with trends_if_held_back(settings):
            _, last = ingest_before_last(small)
            return _to_the_end(last) if options.to_the_end else _judged(last).to_json()
    with trends_if_held_back(settings), session(settings, "ingest", meanwhile=judging) as spark:
        _, last = ingest_before_last(Run(spark, catalog, settings, run_id, now, interval))
        return (_judged(last) if options.judge else ingest(last)).to_json()


def _require_small(run: "Run") -> None:
    """Look before anything is written.

    Raises:
        NeedsSpark: there is more to take in.
    """
    from pipelines.ingest.ledger import new_segments

    size = sum(segment.size for segment in new_segments(run.catalog, run.archive, run.part))
    if not is_small(run.settings, size):
        raise NeedsSpark(f"{size} bytes of the archive are to be taken in")


def _judged(run: "Run") -> "Ingested":
    from pipelines.ingest.aside import ingest_and_judge
    from pipelines.ingest.audit import AuditFailed
    from pipelines.ingest.write import written_result

    try:
        return ingest_and_judge(run)[0]
    except AuditFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return written_result(run.catalog, run.run_id)


def _to_the_end(run: "Run") -> str:
    """Ingest, audit, publish and populate in this process. What cannot be done here is left to the stage that does it alone."""
    from pipelines.ingest.audit import AuditFailed
    from pipelines.ingest.run_all import ingest_audit_publish
    from pipelines.ingest.write import written_result

    try:
        written, report, warnings = ingest_audit_publish(run)
    except AuditFailed as exc:
        sys.stderr.write(f"{exc}\n")
        return written_result(run.catalog, run.run_id).to_json()
    done: dict[str, Mapping[str, Any]] = {
        "audit": {"run_id": run.run_id, "report": report, "warnings": warnings},
        "publish": {"run_id": run.run_id, "published": bool(written.segments)},
    }
    done |= _populated(run.catalog, run.settings)
    return json.dumps(json.loads(written.to_json()) | {"done": done})


def _populated(catalog: "Catalog", settings: Settings) -> dict[str, Mapping[str, Any]]:
    """The result of `populate` by its name; empty if the stage must run again, or report its failure."""
    from redis.exceptions import RedisError

    from manifold.contracts.errors import ManifoldError
    from pipelines.ingest.trends import draw_trends
    from pipelines.populate.load import populate

    try:
        found = populate(None, catalog, settings, now=datetime.now(UTC))
    except (ManifoldError, RedisError) as exc:
        sys.stderr.write(f"the queues are left to the stage populate: {exc}\n")
        return {}
    if found.problem:
        return {}
    draw_trends(settings, now=datetime.now(UTC))
    return {"populate": json.loads(found.to_json())}
