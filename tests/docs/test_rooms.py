"""The table of rooms in docs/architecture.md: what each room imports is what its third column says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import ROOT

ROW = re.compile(r"^\| `([\w/]+)/` \| .+ \| (.+) \|$", re.MULTILINE)
ROOMS = dict(ROW.findall((ROOT / "docs/architecture.md").read_text()))


def imported(path: Path) -> Iterator[str]:
    """The modules that a file names in its imports, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "manifold":
            yield from (f"manifold.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def package(room: str) -> str:
    """`lake` and `manifold/lake` are the package `manifold.lake`; a room on top is a package of its own."""
    return room.replace("/", ".") if f"manifold/{room}" not in ROOMS else f"manifold.{room}"


def allowed(room: str) -> set[str]:
    """The packages and modules that the third column names; a room may always import itself."""
    names = {name.strip("` ") for name in re.split(r",| \(.*?\)", ROOMS[room])}
    return {package(name) for name in (set(ROOMS) if names == {"everything"} else names | {room})}


def is_in(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def test_the_table_has_every_room() -> None:
    folders = [path.parent for each in ("*/__init__.py", "manifold/*/__init__.py") for path in ROOT.glob(each)]
    rooms = {str(folder.relative_to(ROOT)) for folder in folders} - {"manifold", "tests", "benchmarks"}

    assert rooms == {room for room in ROOMS if (ROOT / room / "__init__.py").exists()}


@pytest.mark.parametrize("room", [room for room in ROOMS if (ROOT / room / "__init__.py").exists()])
def test_a_room_imports_what_the_table_says_and_no_more(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    found = {module for path in files for module in imported(path) if is_in(module, {"manifold", *map(package, ROOMS)})}

    assert files
    assert sorted(module for module in found if not is_in(module, allowed(room))) == []
