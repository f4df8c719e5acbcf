"""What a run says at its end: the table, and for each broken promise the story of one vehicle."""

from collections import Counter
from collections.abc import Iterator

from rich.table import Table

from tests.faults.history import about, read
from tests.faults.run import Result

AROUND = 14  # lines told before and after each line of the entry concerned
STORIES = 3


def table_of(results: list[Result]) -> Table:
    """Every word of the checker, a column a seed."""
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


def stories(result: Result) -> Iterator[str]:
    """Why the run failed, for people: of each broken promise one vehicle's history around the entry."""
    if result.trouble:
        yield result.trouble
    lines = read(result.history)
    for word, entries in result.verdict.broken.items():
        yield f"{word}: {len(entries)}, for example {', '.join(f'{vin} seq {seq}' for vin, seq in entries[:STORIES])}"
        vin, seq = entries[0]
        own = list(about(lines, vin))
        requests = {line.request for line in own if line.seq == seq and line.request}
        places = [n for n, line in enumerate(own) if line.seq == seq or line.request in requests]
        shown = range(max(0, min(places, default=0) - AROUND), max(places, default=0) + AROUND)
        yield f"  {vin}:"
        for place, line in enumerate(own):
            if place in shown:
                yield f"  {'>' if place in places else ' '} {line}"
