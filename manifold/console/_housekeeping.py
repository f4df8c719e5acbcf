"""`manifold compact`, `gc`, `verify`: compacts tables, collects garbage, compares the queues with the lake. Without Airflow."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from manifold.console._job import SPARK_START_NOTE, run_job
from manifold.console._output import FAILED, AsJson, handle_errors, out, print_json, settings_or_fail, table

if TYPE_CHECKING:  # importing Spark takes a second, so the commands import the pipelines themselves
    from pipelines.maintenance.compact import TableResult
    from pipelines.maintenance.garbage import Collected
    from pipelines.maintenance.garbage_run import Removal
    from pipelines.maintenance.verify import Verified

MAX_EXAMPLES = 3  # removed rows or files that `gc` names, for each kind
DryRun = Annotated[bool, typer.Option("--dry-run", help="List what would be removed; change nothing.")]
Repair = Annotated[
    bool, typer.Option("--repair", help="Queue missing entries, end those that have ended, and restore their order.")
]


@handle_errors
def compact(as_json: AsJson = False) -> None:
    """Rewrite small files, sort settled days by vehicle, apply deletes; no query result changes."""
    settings = settings_or_fail()
    from pipelines.stages.maintenance import compact_tables

    result = run_job(settings, f"compacting{SPARK_START_NOTE}", lambda: compact_tables(settings), quiet=as_json)
    if as_json:
        _print_result(result)
        return
    columns = ("table", "files", "of them sorted", "bytes", "manifests", "rewritten", "seconds", "note")
    rows = [_compaction_row(name, table_result) for name, table_result in result.tables.items()]
    out.print(table("the tables are compacted", columns, rows))


@handle_errors
def gc(dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Remove what is past its retention; in this order: entries, data, refused messages, snapshots, orphans, segments."""
    settings = settings_or_fail()
    from pipelines.stages.maintenance import collect_garbage

    result = run_job(
        settings,
        f"{'looking for' if dry_run else 'collecting'} garbage{SPARK_START_NOTE}",
        lambda: collect_garbage(settings, dry_run=dry_run),
        quiet=as_json,
    )
    if as_json:
        _print_result(result)
        return
    title = "would be removed" if dry_run else "removed"
    out.print(table(title, ("what", "how many", "bytes", "for example", "note"), removal_rows(result)))


@handle_errors
def verify(repair: Repair = False, as_json: AsJson = False) -> None:
    """Compare the queues with the lake; exit status 1 if they differ and not every difference was repaired."""
    settings = settings_or_fail()
    from pipelines.stages.maintenance import verify_queues

    result = run_job(
        settings,
        f"comparing queues and lake{SPARK_START_NOTE}",
        lambda: verify_queues(settings, repair=repair),
        quiet=as_json,
    )
    if as_json:
        _print_result(result)
    else:
        _show_verified(result)
    if not result.agree:
        raise typer.Exit(FAILED)


def _compaction_row(name: str, result: "TableResult") -> tuple[object, ...]:
    before, after = result.before, result.after
    note = result.left_alone  # why the table was skipped
    if not note and result.failed_files:
        note = f"{result.failed_files} files conflicted with another commit; the next compaction rewrites them"
    return (
        name,
        f"{before.files} → {after.files}",
        f"{before.sorted_files} → {after.sorted_files}",
        f"{before.bytes:,} → {after.bytes:,}",
        f"{before.manifests} → {after.manifests}",
        result.rewritten_files,
        result.seconds,
        note or "",
    )


def removal_rows(result: "Collected") -> list[tuple[object, ...]]:
    """The rows of `gc`'s table, one for each kind of removal."""
    removals_by_kind = {
        "entries that expired": [result.expired],
        "data": [result.data],
        "messages of compacted queues": [result.messages],
        "signals": [result.signals],
        "refused messages": [result.quarantine],
        "history": [result.history, result.campaigns],
        "segments of the archive": [result.segments],
        "rows of segments that are gone": [result.ledger],
        "snapshots": list(result.snapshots.values()),
        "files that no snapshot knows": list(result.orphans.values()),
    }
    return [_removal_row(kind, removals) for kind, removals in removals_by_kind.items()]


def _removal_row(kind: str, removals: Sequence["Removal"]) -> tuple[object, ...]:
    """The row of a kind: number and bytes of all removals, some examples, and the first reason why something was kept.

    The bytes are None if no removal knows its bytes.
    """
    count = sum(removal.count for removal in removals)
    known_sizes = [removal.bytes for removal in removals if removal.bytes is not None]
    total_bytes = sum(known_sizes) if known_sizes else None
    examples = [name for removal in removals for name in removal.sample]
    reasons = [removal.kept_because for removal in removals if removal.kept_because]
    note = f"kept: {reasons[0]}" if reasons else ""
    return (kind, count, total_bytes, ", ".join(examples[:MAX_EXAMPLES]), note)


def _show_verified(result: "Verified") -> None:
    """Print the differences between queues and lake; those of compacted queues only if there are any."""
    verdict = "agree" if result.agree else "DIFFER"
    out.print(f"queues and lake {verdict}: {result.in_queues} entries wait, {result.too_young} of them are not ingested yet")
    rows = [(kind, count, result.repaired.get(kind, "")) for kind, count in result.differences.items()]
    out.print(table("", ("difference", "entries", "repaired"), rows))
    compacted_differences = {kind: count for kind, count in result.compacted.items() if count}
    if compacted_differences:
        rows = [(kind, count, result.compacted_repaired.get(kind, "")) for kind, count in compacted_differences.items()]
        out.print(table("", ("compacted queues", "clients", "repaired"), rows))
    if not result.loaded:
        out.print("the queues are not loaded; run manifold rebuild")
    if result.report:
        out.print(f"report: {result.report}")


def _print_result(result: Any) -> None:
    print_json(json.loads(result.to_json()))
