"""Names of tests state a behaviour in one readable line."""

import re
from pathlib import Path

from tests.support.servers import ROOT

MAX_NAME_CHARACTERS = 80
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def names_in(folder: Path) -> list[str]:
    """The names of all test functions below a folder."""
    return [name for file in folder.rglob("test_*.py") for name in TEST.findall(file.read_text())]


def test_no_test_name_is_longer_than_80_characters() -> None:
    names = names_in(ROOT / "tests")
    assert names
    assert [name for name in names if len(name) > MAX_NAME_CHARACTERS] == []
