"""`manifold stream`: the streaming ingest, without Airflow."""

from dataclasses import asdict
from typing import Annotated

import typer

from manifold.console._job import run_job
from manifold.console._output import AsJson, handle_errors, out, print_json, settings_or_fail


@handle_errors
def stream(
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="End when every segment is ingested, instead of waiting for new ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ingest new segments into the lake as they come; in micro-batches, until it is interrupted.

    May run beside `manifold ingest` and the DAGs: each segment is ingested once. Metrics are served on the port of the setting
    `stream_port`.
    """
    settings = settings_or_fail()
    from manifold.runtime.log import configure_logging
    from pipelines.stream.query import stream as run_stream  # importing Spark takes a second

    configure_logging("stream", json=settings.log_format == "json")
    # Quiet, because the stream writes log lines to the terminal, among which a spinner would be redrawn.
    totals = run_job(settings, "streaming", lambda: run_stream(settings, until_idle=until_idle), quiet=True)
    if as_json:
        print_json(asdict(totals))
    else:
        out.print(f"{totals.batches} micro-batches: {totals.segments} segments, {totals.rows} rows")
