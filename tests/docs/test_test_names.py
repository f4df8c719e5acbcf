"""Names of tests state a behaviour in one readable line."""

import ast
from pathlib import Path

from tests.support.servers import ROOT

MAX_NAME_CHARACTERS = 80


def names_in(folder: Path) -> list[str]:
    """The names of all test functions below a folder."""
    return [
        node.name
        for file in folder.rglob("test_*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def test_no_test_name_is_longer_than_80_characters() -> None:
    names = names_in(ROOT / "tests")
    assert names
    assert [name for name in names if len(name) > MAX_NAME_CHARACTERS] == []
