"""`manifold airflow …`: Airflow's own command line, on the embedded Airflow; `manifold password`: how to log in to its UI."""

import os
import sys
from typing import Annotated

import typer

from manifold.console._output import fail, handle_errors, out, settings_or_fail
from manifold.sandbox.platform.airflow_users import OPERATOR, ROLES, password_of


@handle_errors
def airflow(context: typer.Context) -> None:
    """Run a command of Airflow, such as `dags list`, on this platform's Airflow."""
    settings = settings_or_fail()
    if not (settings.home / "airflow" / "airflow.db").exists():
        fail(f"{settings.home} has no Airflow yet; run `manifold up` first")
    from manifold.sandbox.platform.airflow import environment as airflow_environment
    from manifold.sandbox.platform.programs import environment as settings_environment

    env = airflow_environment(settings, settings_environment(settings))
    command = [sys.executable, "-m", "airflow", *context.args]
    os.execve(sys.executable, command, env)  # noqa: S606  # replaces this process, so nothing after this line runs


@handle_errors
def password(
    user: Annotated[
        str, typer.Argument(help="viewer reads; operator triggers, and sets pools and connections; admin may do all")
    ] = OPERATOR,
) -> None:
    """Print the password of a user of the embedded Airflow; it was generated when Airflow first started."""
    settings = settings_or_fail()
    if user not in ROLES:
        fail(f"Airflow has no user {user!r}; ask for {', '.join(ROLES)}")
    out.print(password_of(settings, user), highlight=False)
