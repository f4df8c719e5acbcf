"""`manifold lake`: compares the lake with the archive, restores it, rolls runs back, and migrates tables."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._job import run_job
from manifold.console._output import FAILED, AsJson, handle_errors, out, print_json, settings_or_fail, spinner, table

if TYPE_CHECKING:  # importing the pipelines takes a second, so the commands import them themselves
    from pipelines.maintenance.check import Checked

MAX_SHOWN = 20  # findings of a check, and ids of undone runs; --json prints more

app = typer.Typer(
    help="Check the lake against the archive, restore it, undo a run, or migrate its tables.",
    no_args_is_help=True,
)

Days = Annotated[
    float | None, typer.Option(min=0, help="Only segments that began so many days ago or later.", show_default="all")
]
Repair = Annotated[
    bool, typer.Option("--repair", help="Ingest segments whose rows are missing or doubled, and those that no run has ingested.")
]
WithoutHistory = Annotated[
    bool, typer.Option("--without-history", help="Give up segments that the lake has and the archive no longer has.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Plan = Annotated[bool, typer.Option("--plan", help="List what would be done; change nothing.")]
RunId = Annotated[str, typer.Option("--run-id", help="The run, as manifold report and the column run_id name it.")]


@app.command()
@handle_errors
def check(days: Days = None, repair: Repair = False, as_json: AsJson = False) -> None:
    """Compare archive, ledger and tables, segment by segment; exit status 1 if they disagree and not everything was repaired."""
    settings = settings_or_fail()
    from pipelines.stages.maintenance import check_lake

    result = run_job(
        settings, "comparing archive and lake", lambda: check_lake(settings, days=days, repair=repair), quiet=as_json
    )
    if as_json:
        _print_result(result)
    else:
        _show_checked(result)
    if not result.agree:
        raise typer.Exit(FAILED)


@app.command()
@handle_errors
def restore(without_history: WithoutHistory = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Empty the lake's tables, and ingest the whole archive again. Until this has ended, readers find only part of the rows."""
    settings = settings_or_fail()
    if not yes:
        typer.confirm("This empties the lake's tables and ingests the whole archive again. Go on?", abort=True, err=True)
    from pipelines.maintenance.restore import restore_lake

    result = run_job(
        settings, "rebuilding the lake", lambda: restore_lake(settings, without_history=without_history), quiet=as_json
    )
    if as_json:
        _print_result(result)
    else:
        out.print(f"the lake is rebuilt: {result.segments} segments in {result.runs} runs")
        out.print(f"to get back what was there before: manifold lake rollback --run-id {result.run_id}")


@app.command()
@handle_errors
def rollback(run_id: RunId, as_json: AsJson = False) -> None:
    """Undo a published run and all runs after it. The next ingest reads their segments again."""
    settings = settings_or_fail()
    from pipelines.maintenance.rollback import rollback_run

    result = run_job(settings, "rolling back the run", lambda: rollback_run(settings, run_id), quiet=as_json)
    if as_json:
        _print_result(result)
    else:
        out.print(f"{len(result.undone)} runs are undone: {', '.join(result.undone[:MAX_SHOWN])}")
        out.print(f"{result.segments} segments count as new again, and the next ingest reads them")
        out.print(f"to undo this: manifold lake rollback --run-id {result.run_id}")


@app.command()
@handle_errors
def migrate(plan: Plan = False, as_json: AsJson = False) -> None:
    """Migrate the tables of an earlier release to this one, step by step. Safe to repeat, and to run beside ingest."""
    settings = settings_or_fail()
    from pipelines.stages.maintenance import migrate_lake

    with spinner("looking at the tables", quiet=as_json or not sys.stderr.isatty()) as set_status:
        result = migrate_lake(settings, plan=plan, say=set_status)
    if as_json:
        _print_result(result)
        return
    for name in result.made:
        out.print(f"missing table {name}: {'would be created' if plan else 'created'}")
    if not result.steps:
        which_tables = "every other table" if result.made else "every table"
        out.print(f"{which_tables} is up to date with this release")
        return
    rows = [
        (step.table, step.version, step.step, step.says, "resumed" if step.resumed else "", step.seconds) for step in result.steps
    ]
    columns = ("table", "to version", "step", "what it does", "note", "seconds")
    out.print(table("this would be done" if plan else "done", columns, rows))


def _show_checked(result: "Checked") -> None:
    from pipelines.maintenance.check_plan import REMEDIES, Disagreement

    verdict = "agree" if result.agree else "DISAGREE"
    out.print(f"archive, ledger and tables {verdict}: {result.segments} segments, {result.messages} messages")
    if result.repaired:
        out.print(f"{result.repaired} segments were ingested again")
    findings = result.findings[:MAX_SHOWN]
    if findings:
        rows = [(finding.path, finding.trouble, finding.table, finding.expected, finding.found) for finding in findings]
        out.print(table("", ("segment", "trouble", "table", "rows expected", "rows found"), rows))
    for trouble, count in result.troubles.items():
        out.print(f"{trouble}: {count}; {REMEDIES[Disagreement(trouble)]}")


def _print_result(result: Any) -> None:
    print_json(json.loads(result.to_json()))
