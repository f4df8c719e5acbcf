"""`manifold compact`, `gc`, `verify`: maintenance of the lake, and comparing the queues with it, without Airflow."""

import json
from typing import Annotated, Any

import typer

from manifold.console._job import FIRST, run_job
from manifold.console._output import FAILED, AsJson, handle_errors, out, print_json, settings_or_fail, table

DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would go; change nothing.")]
Repair = Annotated[bool, typer.Option("--repair", help="Queue what is missing, end what has ended, put in order.")]


@handle_errors
def compact(as_json: AsJson = False) -> None:
    """Rewrite small files, sort settled days by vehicle, apply deletes; the rows stay what they are."""
    settings = settings_or_fail()
    from pipelines.stages.compact import compact_tables  # importing Spark takes a second

    result = run_job(settings, f"compacting{FIRST}", lambda: compact_tables(settings), quiet=as_json)
    if as_json:
        _print(result)
        return
    columns = ("table", "files", "of them sorted", "bytes", "manifests", "rewritten", "seconds", "note")
    rows = [
        (
            name,
            f"{t.before.files} → {t.after.files}",
            f"{t.before.sorted_files} → {t.after.sorted_files}",
            f"{t.before.bytes:,} → {t.after.bytes:,}",
            f"{t.before.manifests} → {t.after.manifests}",
            t.rewritten_files,
            t.seconds,
            t.left_alone or (f"{t.failed_files} files are for the next time" if t.failed_files else ""),
        )
        for name, t in result.tables.items()
    ]
    out.print(table("the tables are compacted", columns, rows))


@handle_errors
def gc(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove what is past its retention; in this order: entries, data, refused messages, snapshots, orphans, segments."""
    settings = settings_or_fail()
    from pipelines.stages.garbage import collect_garbage

    result = run_job(
        settings,
        f"{'looking for' if dry_run else 'collecting'} garbage{FIRST}",
        lambda: collect_garbage(settings, dry_run=dry_run),
        quiet=as_json,
    )
    if as_json:
        _print(result)
        return
    kinds = {
        "entries that expired": [result.expired],
        "data": [result.data],
        "messages of compacted queues": [result.messages],
        "refused messages": [result.quarantine],
        "history": [result.history, result.campaigns],
        "segments of the archive": [result.segments],
        "rows of segments that are gone": [result.ledger],
        "snapshots": list(result.snapshots.values()),
        "files that no snapshot knows": list(result.orphans.values()),
    }
    rows = [
        (
            kind,
            sum(g.count for g in removals),
            sum(g.bytes for g in removals if g.bytes is not None) if any(g.bytes is not None for g in removals) else None,
            ", ".join([name for g in removals for name in g.sample][:3]),
            next((f"kept: {g.kept_because}" for g in removals if g.kept_because), ""),
        )
        for kind, removals in kinds.items()
    ]
    title = "this would go" if dry_run else "this is gone"
    out.print(table(title, ("what", "how many", "bytes", "for example", "note"), rows))


@handle_errors
def verify(repair: Repair = False, as_json: AsJson = False) -> None:
    """Compare the queues with the lake; exit status 1 if they differ (and that was not repaired)."""
    settings = settings_or_fail()
    from pipelines.stages.verify import verify_queues

    result = run_job(settings, f"comparing queues and lake{FIRST}", lambda: verify_queues(settings, repair=repair), quiet=as_json)
    if as_json:
        _print(result)
    else:
        verdict = "agree" if result.agree else "DIFFER"
        out.print(f"queues and lake {verdict}: {result.in_queues} entries wait, {result.too_young} of them are not ingested yet")
        rows = [(kind, count, result.repaired.get(kind, "")) for kind, count in result.differences.items()]
        out.print(table("", ("difference", "entries", "repaired"), rows))
        if any(result.compacted.values()):
            rows = [(kind, count, result.compacted_repaired.get(kind, "")) for kind, count in result.compacted.items() if count]
            out.print(table("", ("compacted queues", "clients", "repaired"), rows))
        if not result.loaded:
            out.print("the queues are not loaded; run manifold rebuild")
        if result.report:
            out.print(f"report: {result.report}")
    if not result.agree:
        raise typer.Exit(FAILED)


def _print(result: Any) -> None:
    print_json(json.loads(result.to_json()))
