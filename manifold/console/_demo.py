"""`manifold demo`: the main job on the embedded platform, judged by what the vehicles actually received."""

import asyncio
import time

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from manifold.console._demo_job import Demo
from manifold.console._output import FAILED, err, handle_errors, out, settings_or_fail, table
from manifold.contracts.errors import ManifoldError, Permanent
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings

SCHEDULE_SETTINGS = tuple(name for name in Settings.model_fields if name.endswith("_schedule"))  # of the DAGs
DESCRIPTION = TextColumn("{task.description}", table_column=Column(no_wrap=False))  # wraps on a narrow terminal
STEPS = (SpinnerColumn(finished_text="[green]✓[/]"), DESCRIPTION, TimeElapsedColumn(table_column=Column(no_wrap=True)))


@handle_errors
def demo() -> None:
    """Run the main job from end to end: a fleet, a batch, Airflow, the lake, a wiped Redis. Exit status 0 only if all held."""
    # The demo triggers the DAG itself, so no DAG gets a schedule: scheduled runs would only delay it.
    settings = settings_or_fail().model_copy(update=dict.fromkeys(SCHEDULE_SETTINGS, ""))
    if supervise.status(settings).running:
        raise Permanent("the platform is up, and the demo wants to start and stop it itself; run make down first")
    began = time.monotonic()
    with Progress(*STEPS, console=err) as progress:
        steps = _Steps(progress)
        job = Demo(settings, steps.begin)
        try:
            steps.begin(describe_start(settings))
            supervise.up(settings, not_waiting_for=("airflow",))  # the job waits for Airflow itself, after its first steps
            asyncio.run(job.play())
        except ManifoldError as exc:
            job.record_abort(str(exc))
        finally:
            steps.begin("stopping the platform")
            supervise.down(settings)
            steps.end()
    _show(settings, job, time.monotonic() - began)
    if not job.held:
        raise typer.Exit(FAILED)


def describe_start(settings: Settings) -> str:
    """Describe the first step: the programs that the demo starts. An external broker is not among them."""
    return f"starting the platform: {', '.join(program.name for program in programs(settings))}"


class _Steps:
    """Shows one line per step. Beginning a step ends the previous one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(self, description: str) -> None:
        self.end()
        self._progress.add_task(description, total=1)

    def end(self) -> None:
        for task in self._progress.task_ids:
            self._progress.update(task, completed=1)


def _show(settings: Settings, job: Demo, seconds: float) -> None:
    rows = [("yes" if check.held else "NO", check.what, check.seen) for check in job.checks]
    verdict = "all of it held" if job.held else "NOT all of it held"
    out.print(table(f"The main job, in {seconds:.0f} s: {verdict}", ("held", "what", "seen"), rows))
    if job.signals is not None:
        columns = ("kind", "sent", "the door", "the lake")
        out.print(table(f"What became of {len(job.signals.sent)} signals, by kind", columns, job.signals.summary_rows()))
    out.print("Look next:")
    if job.report:
        out.print(f"  {job.report}   the quality report of this run")
    out.print("  make up   then the Airflow UI at " + supervise.status(settings).addresses.airflow)
    out.print(f"  .venv/bin/manifold vin show {job.example}   what happened to a vehicle")
