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

SCHEDULES = tuple(name for name in Settings.model_fields if name.endswith("_schedule"))
WORDS = TextColumn("{task.description}", table_column=Column(no_wrap=False))  # wraps on a narrow terminal
STEPS = (SpinnerColumn(finished_text="[green]✓[/]"), WORDS, TimeElapsedColumn(table_column=Column(no_wrap=True)))


@handle_errors
def demo() -> None:
    """Run the main job from end to end: a fleet, a batch, Airflow, the lake, a wiped Redis. Exit status 0 only if all held."""
    # The demo triggers the DAG itself; runs by schedule would only delay it.
    settings = settings_or_fail().model_copy(update=dict.fromkeys(SCHEDULES, ""))
    if supervise.status(settings).running:
        raise Permanent("the platform is up, and the demo wants to start and stop it itself; run make down first")
    began = time.monotonic()
    with Progress(*STEPS, console=err) as progress:
        step = _Steps(progress)
        played = Demo(settings, step.now)
        try:
            step.now(start_of(settings))
            supervise.up(settings, not_waiting_for=("airflow",))
            asyncio.run(played.play())
        except ManifoldError as exc:
            played.fail(str(exc))
        finally:
            step.now("stopping the platform")
            supervise.down(settings)
            step.end()
    _show(settings, played, time.monotonic() - began)
    if not played.held:
        raise typer.Exit(FAILED)


def start_of(settings: Settings) -> str:
    """Describe the first step, with the programs that the demo starts, which exclude an external broker."""
    return f"starting the platform: {', '.join(program.name for program in programs(settings))}"


class _Steps:
    """Shows one line per step; a new step completes the previous one."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def now(self, doing: str) -> None:
        self.end()
        self._progress.add_task(doing, total=1)

    def end(self) -> None:
        for task in self._progress.task_ids:
            self._progress.update(task, completed=1)


def _show(settings: Settings, played: Demo, seconds: float) -> None:
    rows = [("yes" if check.held else "NO", check.what, check.seen) for check in played.checks]
    verdict = "all of it held" if played.held else "NOT all of it held"
    out.print(table(f"The main job, in {seconds:.0f} s: {verdict}", ("held", "what", "seen"), rows))
    if played.signals is not None:
        sent = played.signals
        columns = ("kind", "sent", "the door", "the lake")
        out.print(table(f"What became of {len(sent.sent)} signals, by kind", columns, sent.rows()))
    out.print("Look next:")
    if played.report:
        out.print(f"  {played.report}   the quality report of this run")
    out.print("  make up   then the Airflow UI at " + supervise.status(settings).addresses.airflow)
    out.print(f"  .venv/bin/manifold vin show {played.example}   what happened to a vehicle")
