"""The table printed at the end of runs."""

from collections import Counter

from rich.table import Table

from tests.faults.run import Result


def table_of(results: list[Result]) -> Table:
    """Every count of the checker, with one column per seed."""
    table = Table(title="faults", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(f"seed {result.plan.seed}", justify="right")
    counts = [result.verdict.counts() for result in results]
    for word in counts[0]:
        table.add_row(word, *(str(of.get(word, 0)) for of in counts))
    table.add_section()
    for what in ("enqueued", "published", "delivered", "acknowledged", "ended", "recorded"):
        table.add_row(f"lines {what}", *(str(result.seen.get(what, 0)) for result in results))
    table.add_section()
    done = [Counter(name for name, _ in result.injected) for result in results]
    for name in sorted({name for of in done for name in of}):
        slowest = [max((s for n, s in result.injected if n == name), default=0.0) for result in results]
        table.add_row(name, *(f"{of[name]}× ≤ {s:.0f} s" if of[name] else "–" for of, s in zip(done, slowest, strict=True)))
    return table
