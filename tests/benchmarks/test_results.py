"""Rows get their aims, results of a benchmark replace its earlier ones, and the command knows every benchmark."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _results, names
from benchmarks._measure import Aim, Cost, Row, Size, at_least, at_most, cost_of, multiples, percentile, speeds
from benchmarks._results import Result, follow, judge, keep, read, write
from benchmarks.page import page
from tests.support.servers import ROOT

DAY, MACHINE = "2026-11-26", "2 cores"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_results, "FILE", tmp_path / "results.json")
    write([])


@pytest.mark.parametrize(
    ("aim", "text", "met", "missed"),
    [
        (at_least(0.35), "≥ 0.35", 0.35, 0.349),
        (at_least(1500, "/s"), "≥ 1,500/s", 1500, 1499),
        (at_most(2.5, "ms"), "≤ 2.5 ms", 2.5, 2.51),
    ],
)
def test_an_aim_is_met_at_its_limit(aim: Aim, text: str, met: float, missed: float) -> None:
    assert (str(aim), aim.is_met(met), aim.is_met(missed)) == (text, True, False)


def test_an_aim_bounds_the_value_of_a_row_or_else_its_ratio() -> None:
    rows = [Row("rate", "5/s", "raw", 0.4), Row("latency", "9 ms", "raw", 0.4, 9), Row("memory", "1 B")]
    aims = {"rate": at_least(0.5), "latency": at_most(10, "ms"), "start": at_most(3, "s")}

    assert judge("b", rows, aims, date=DAY, machine=MACHINE) == [
        Result("b", "rate", "5/s", "raw", 0.4, "≥ 0.5", False, DAY, MACHINE),
        Result("b", "latency", "9 ms", "raw", 0.4, "≤ 10 ms", True, DAY, MACHINE),
        Result("b", "memory", "1 B", date=DAY, machine=MACHINE),
        Result("b", "start", aim="≤ 3 s"),
    ]


@pytest.mark.usefixtures("results")
def test_new_results_replace_those_of_their_benchmark_alone() -> None:
    keep("b", [Result("b", "old")])
    keep("a", [Result("a", "one"), Result("a", "two")])
    keep("b", [Result("b", "new", "1 ms", "raw", 0.5)])

    assert read() == [Result("a", "one"), Result("a", "two"), Result("b", "new", "1 ms", "raw", 0.5)]


@pytest.mark.usefixtures("results")
def test_results_follow_the_benchmarks_that_exist_and_their_aims() -> None:
    measured = Result("b", "rate", "5/s", "raw", 0.4, date=DAY, machine=MACHINE)
    write([Result("a", "gone", date=DAY), measured, Result("b", "dropped", aim="≤ 1 s")])

    follow({"b": {"rate": at_least(0.5), "start": at_most(3, "s")}, "c": {}})

    assert read() == [measured, Result("b", "start", aim="≤ 3 s")]


def test_the_page_says_what_is_not_measured_and_what_is_missed() -> None:
    text = page([Result("b", "rate", "5/s", "raw", 0.4, "≥ 0.5", False, DAY, MACHINE), Result("b", "start", aim="≤ 3 s")])

    assert text.endswith(
        "|**b**|||||||2 cores|\n|rate|5/s|raw|0.4|≥ 0.5|**no**|2026-11-26||\n|start|not measured yet|||≤ 3 s||||\n"
    )


def test_speeds_are_shares_and_costs_multiples_of_the_rival() -> None:
    mine, rival = Cost(4.0, 5.0), Cost(2.0, 1.0)

    assert [row.ratio for row in speeds("s", 100, "rows", mine, "r", rival)] == [0.5, 0.2]
    assert [row.ratio for row in multiples("m", mine, "r", rival)] == [2.0, 5.0]
    assert speeds("s", 100, "rows", mine, "r", rival)[0].figure == "25 rows/s"


def test_the_cost_of_work_includes_its_child_processes() -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass"
    assert cost_of(subprocess.run, [sys.executable, "-c", work], check=True).cpu_s >= 0.25


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert (percentile([3, 1, 2], 0.5), percentile([3, 1, 2], 0.99), percentile([1], 0.99)) == (2, 3, 1)
    assert Size("small").pick(full=10, small=2) == 2


def test_the_command_names_every_benchmark_where_one_is_unknown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"COLUMNS": "400"},
        check=False,
    )

    assert done.returncode == 2
    assert f"there is no benchmark nothing; choose from {', '.join(names())}" in done.stderr
