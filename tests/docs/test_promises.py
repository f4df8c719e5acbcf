"""The page that promises what is tested names tests that are there."""

import re

from tests.support.servers import ROOT

PAGE = (ROOT / "docs" / "guides" / "secure.md").read_text()


def named() -> list[tuple[str, str]]:
    """File and function of each test; a name without a file is of the file before it."""
    file, found = "", []
    for given, function in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", PAGE):
        file = given or file
        found.append((file, function))
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    assert len(named()) > 30, "names are found"
    missing = [f"{file}::{name}" for file, name in named() if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


def test_every_row_of_a_promise_names_a_test() -> None:
    """Of a vehicle, a publisher, an operator, a neighbour, a stolen disk, an upstream package."""
    tables = re.findall(r"^\| promise \| tested by \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(tables) == 6
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
