"""Results of full runs in `results.json`, by benchmark; a new run of a benchmark replaces its results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._measure import Aim, Row

FILE = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True)
class Result:
    """A row with its aim, date and machine. If an aim was not measured yet, figure, date and machine are empty."""

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
        aim = aims.get(row.what)
        ratio = None if row.ratio is None else round(row.ratio, 3)
        aim_text = "" if aim is None else str(aim)
        met = None if aim is None else row.is_met(aim)
        results.append(Result(benchmark, row.what, row.figure, row.rival, ratio, aim_text, met, date, machine))
    measured = {row.what for row in rows}
    return results + [Result(benchmark, what, aim=str(aim)) for what, aim in aims.items() if what not in measured]


def read() -> list[Result]:
    """Return all results in the file, sorted by benchmark."""
    return [Result(**fields) for fields in json.loads(FILE.read_text())]


def keep(benchmark: str, results: Sequence[Result]) -> None:
    """Replace the results of one benchmark."""
    others = [result for result in read() if result.benchmark != benchmark]
    write([*others, *results])


def follow(aims: Mapping[str, Mapping[str, Aim]]) -> None:
    """Adapt the file to the current benchmarks and aims; `aims` has the aims of each benchmark.

    New aims are added as not measured. Removed are the results of benchmarks that no longer exist, and results that were never
    measured and have no aim any more.
    """
    kept = [result for result in read() if result.benchmark in aims and (result.date or result.what in aims[result.benchmark])]
    known = {(result.benchmark, result.what) for result in kept}
    new = [
        Result(benchmark, what, aim=str(aim))
        for benchmark, aims_by_row in aims.items()
        for what, aim in aims_by_row.items()
        if (benchmark, what) not in known
    ]
    write([*kept, *new])


def write(results: Sequence[Result]) -> None:
    """Write these results, sorted by benchmark."""
    in_order = sorted(results, key=lambda result: result.benchmark)
    rows = [json.dumps(asdict(result), ensure_ascii=False) for result in in_order]
    FILE.write_text("[\n" + ",\n".join(rows) + "\n]\n")
