"""`manifold airflow …`: Airflow's own command line, on the embedded Airflow."""

import os
import sys

import typer

from console._output import fail, handle_errors, settings_or_fail


@handle_errors
def airflow(context: typer.Context) -> None:
    """Airflow's own commands (`dags list`, `backfill create`, …), on the Airflow of this platform."""
    settings = settings_or_fail()
    if not (settings.home / "airflow" / "airflow.db").exists():
        fail(f"{settings.home} has no Airflow yet; run `manifold up` first")
    from sandbox.platform.airflow import environment
    from sandbox.platform.programs import environment as spelled

    env = environment(settings, spelled(settings))
    os.execve(sys.executable, [sys.executable, "-m", "airflow", *context.args], env)  # noqa: S606  # as long as it runs, it is Airflow
