"""Results of full runs in `results.json`, by benchmark; a new run of a benchmark replaces its results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._measure import Aim, Row

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True)
class Result:
    """A row with its aim, date and machine. An aim that was not measured has no figure, date or machine."""

    benchmark: str
    what: str
    figure: str = ""
    rival: str = ""
    ratio: float | None = None
    aim: str = ""
    met: bool | None = None
    date: str = ""  # YYYY-MM-DD
    machine: str = ""


def judge(benchmark: str, rows: Sequence[Row], aims: Mapping[str, Aim], *, date: str, machine: str) -> list[Result]:
    """Return the rows with their aims, followed by the aims for which there is no row."""
    results = []
    for row in rows:
        aim, ratio = aims.get(row.what), None if row.ratio is None else round(row.ratio, 3)
        met = None if aim is None else row.is_met(aim)
        results.append(
            Result(benchmark, row.what, row.figure, row.rival, ratio, "" if aim is None else str(aim), met, date, machine)
        )
    measured = {row.what for row in rows}
    return results + [Result(benchmark, what, aim=str(aim)) for what, aim in aims.items() if what not in measured]


def read() -> list[Result]:
    """Return all results that are kept, by benchmark."""
    return [Result(**each) for each in json.loads(FILE.read_text())]


def keep(benchmark: str, results: Sequence[Result]) -> None:
    """Replace the results of one benchmark."""
    kept = [each for each in read() if each.benchmark != benchmark]
    write([*kept, *results])


def follow(aims: Mapping[str, Mapping[str, Aim]]) -> None:
    """Adapt the results to the benchmarks that exist and to their aims, given by benchmark.

    Add aims that are new as not measured; drop results of benchmarks that are gone, and aims that were dropped unmeasured.
    """
    kept = [each for each in read() if each.benchmark in aims and (each.date or each.what in aims[each.benchmark])]
    known = {(each.benchmark, each.what) for each in kept}
    new = [Result(name, what, aim=str(aim)) for name, of in aims.items() for what, aim in of.items() if (name, what) not in known]
    write([*kept, *new])


def write(results: Sequence[Result]) -> None:
    """Write these results, ordered by benchmark."""
    rows = [json.dumps(asdict(each), ensure_ascii=False) for each in sorted(results, key=lambda each: each.benchmark)]
    FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n")
