"""`manifold stream`: the streaming ingest, without Airflow."""

from dataclasses import asdict
from typing import Annotated

import typer

from manifold.console._job import run_job
from manifold.console._output import AsJson, handle_errors, out, print_json, settings_or_fail


@handle_errors
def stream(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when nothing is new, instead of waiting for more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ingest new segments into the lake as they come; in micro-batches, until it is interrupted.

    May run beside `manifold ingest` and the DAGs: a segment counts once. Metrics are on the setting `stream_port`.
    """
    settings = settings_or_fail()
    from manifold.runtime.log import configure_logging
    from pipelines.stream.query import stream as run  # importing Spark takes a second

    configure_logging("stream", json=settings.log_format == "json")
    done = run_job(settings, "streaming", lambda: run(settings, until_idle=until_idle), quiet=True)
    if as_json:
        print_json(asdict(done))
    else:
        out.print(f"{done.batches} micro-batches: {done.segments} segments, {done.rows} rows")
