"""The pages that promise what is tested name tests that are there."""

import re

import pytest

from tests.support.servers import ROOT

GUIDES = ROOT / "docs" / "guides"
SECURE, CAMPAIGNS = "secure.md", "campaigns.md"


def named(page: str) -> list[tuple[str, str]]:
    """File and function of each test; a name without a file is of the file before it."""
    file, found = "", []
    for given, function in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", (GUIDES / page).read_text()):
        file = given or file
        found.append((file, function))
    return found


@pytest.mark.parametrize(("page", "number"), [(SECURE, 30), (CAMPAIGNS, 25)])
def test_every_test_that_the_page_names_is_there(page: str, number: int) -> None:
    assert len(named(page)) > number, "names are found"
    missing = [f"{file}::{name}" for file, name in named(page) if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []


@pytest.mark.parametrize(("page", "number"), [(SECURE, 6), (CAMPAIGNS, 1)])
def test_every_row_of_a_promise_names_a_test(page: str, number: int) -> None:
    """Of the secure page: vehicle, publisher, operator, neighbour, stolen disk, upstream package."""
    tables = re.findall(r"^\| promise \| tested by \|\n\|---\|---\|\n((?:\|.*\n)+)", (GUIDES / page).read_text(), re.MULTILINE)
    assert len(tables) == number
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
