"""docs/guides/delivery.md has a row for each test of a case, and a test for each row."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.servers import ROOT

CASES = Path(__file__).parent
ROWS = re.findall(r"^\| ([A-Z]\d+) \|.*\| `(\S+)` \|$", (ROOT / "docs" / "guides" / "delivery.md").read_text(), re.MULTILINE)


def names_in(file: Path) -> set[str]:
    """The names of the tests in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_case_has_its_row() -> None:
    played = {name for file in CASES.glob("test_*.py") if file != Path(__file__) for name in names_in(file)}
    assert played == {name for _, name in ROWS if "::" not in name}


@pytest.mark.parametrize("named", [name for _, name in ROWS if "::" in name])
def test_a_test_that_lies_elsewhere_exists(named: str) -> None:
    folder, name = named.split("::")
    assert any(name in names_in(file) for file in (ROOT / folder).glob("test_*.py"))


def test_no_row_and_no_test_is_there_twice() -> None:
    ids, names = zip(*ROWS, strict=True)
    assert [each for each, times in (Counter(ids) + Counter(names)).items() if times > 1] == []
