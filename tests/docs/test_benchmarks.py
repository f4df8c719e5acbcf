"""docs/benchmarks.md shows the kept results; each benchmark has the common shape, and none imports a test."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import names
from benchmarks._results import read
from benchmarks.page import PAGE, page
from tests.support.servers import ROOT

MAX_WORDS = 1200


def test_the_page_shows_the_kept_results() -> None:
    assert PAGE.read_text() == page(read()), "run: python -m benchmarks.page"


def test_the_page_stays_short() -> None:
    assert len(PAGE.read_text().split()) <= MAX_WORDS


def test_results_are_of_benchmarks_that_exist() -> None:
    assert {result.benchmark for result in read()} <= set(names())


@pytest.mark.parametrize("name", names())
def test_a_benchmark_says_its_rival_and_keeps_every_aim_in_the_results(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    kept = {result.what: result.aim for result in read() if result.benchmark == name and result.aim}

    assert "against" in (module.__doc__ or "").partition("\n\n")[0]
    assert list(inspect.signature(module.run).parameters) == ["size"]
    assert kept == {what: str(aim) for what, aim in module.AIMS.items()}


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("folder", ["benchmarks", "infra"])
def test_what_is_no_test_imports_none(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))

    assert files
    assert [path for path in files if any(name.split(".")[0] == "tests" for name in imported(path))] == []
