"""`manifold lake check`, `restore`, `rollback`: compare the lake with the archive and repair it; `migrate`."""

import json
import sys
from typing import Annotated, Any

import typer

from manifold.console._job import run_job
from manifold.console._output import FAILED, AsJson, handle_errors, out, print_json, settings_or_fail, table, working

SHOWN = 20

app = typer.Typer(
    help="Check the lake against the archive, restore it, undo a run, or migrate its tables.",
    no_args_is_help=True,
)

Days = Annotated[float | None, typer.Option(min=0, help="Only what began so many days ago or later.", show_default="all")]
Repair = Annotated[bool, typer.Option("--repair", help="Ingest again what is missing, duplicated or not finished.")]
WithoutHistory = Annotated[
    bool, typer.Option("--without-history", help="Give up what the lake has and the archive does not have any more.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Plan = Annotated[bool, typer.Option("--plan", help="Say what would be done; change nothing.")]
RunId = Annotated[str, typer.Option("--run-id", help="The run, as manifold report and the column run_id name it.")]


@app.command()
@handle_errors
def check(days: Days = None, repair: Repair = False, as_json: AsJson = False) -> None:
    """Compare archive, ledger and tables, segment by segment; exit status 1 where they disagree (and that was not repaired)."""
    settings = settings_or_fail()
    from pipelines.stages.check import check_lake  # importing the lake takes a second

    result = run_job(
        settings, "comparing archive and lake", lambda: check_lake(settings, days=days, repair=repair), quiet=as_json
    )
    if as_json:
        _print(result)
    else:
        from pipelines.maintenance.check_plan import REMEDIES, Disagreement

        verdict = "agree" if result.agree else "DISAGREE"
        out.print(f"archive, ledger and tables {verdict}: {result.segments} segments, {result.messages} messages")
        if result.repaired:
            out.print(f"{result.repaired} segments were ingested again")
        rows = [(f.path, f.trouble, f.table, f.expected, f.found) for f in result.findings[:SHOWN]]
        if rows:
            out.print(table("", ("segment", "trouble", "table", "rows expected", "rows found"), rows))
        for trouble, count in result.troubles.items():
            out.print(f"{trouble}: {count}; {REMEDIES[Disagreement(trouble)]}")
    if not result.agree:
        raise typer.Exit(FAILED)


@app.command()
@handle_errors
def restore(without_history: WithoutHistory = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Empty the lake's tables, and ingest the whole archive again. Until this is done, readers see a part of it."""
    settings = settings_or_fail()
    if not yes:
        typer.confirm("This empties the lake's tables and ingests the whole archive again. Go on?", abort=True, err=True)
    from pipelines.maintenance.restore import restore_lake

    result = run_job(
        settings, "rebuilding the lake", lambda: restore_lake(settings, without_history=without_history), quiet=as_json
    )
    if as_json:
        _print(result)
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
        _print(result)
    else:
        out.print(f"{len(result.undone)} runs are undone: {', '.join(result.undone[:SHOWN])}")
        out.print(f"{result.segments} segments count as new again, and the next ingest reads them")
        out.print(f"to undo this: manifold lake rollback --run-id {result.run_id}")


@app.command()
@handle_errors
def migrate(plan: Plan = False, as_json: AsJson = False) -> None:
    """Bring the tables of an earlier release to what this one makes, step by step. Safe to repeat, and while others work."""
    settings = settings_or_fail()
    from pipelines.stages.migrate import migrate_lake

    with working("looking at the tables", quiet=as_json or not sys.stderr.isatty()) as say:
        result = migrate_lake(settings, plan=plan, say=say)
    if as_json:
        _print(result)
        return
    for name in result.made:
        out.print(f"{name} {'would be' if plan else 'was'} made: the lake did not have it")
    if not result.steps:
        out.print("every table is as this release makes it" + (" otherwise" if result.made else ""))
        return
    rows = [(s.table, s.version, s.step, s.says, "again" if s.resumed else "", s.seconds) for s in result.steps]
    columns = ("table", "to version", "step", "what it does", "", "seconds")
    out.print(table("this would be done" if plan else "done", columns, rows))


def _print(result: Any) -> None:
    print_json(json.loads(result.to_json()))
