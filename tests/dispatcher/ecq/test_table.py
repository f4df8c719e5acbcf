"""docs/guides/compacted-queues.md has a row for each test of a case, and a test for each row."""

import re
from collections import Counter
from pathlib import Path

from tests.dispatcher.cases.test_table import names_in
from tests.support.servers import ROOT

ROWS = re.findall(r"^\| ([A-Z]\d+) \|.*\| `(\S+)` \|$", (ROOT / "docs" / "guides" / "compacted-queues.md").read_text(), re.MULTILINE)


def test_every_case_has_its_row() -> None:
    played = {name for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__) for name in names_in(file)}
    assert played == {name for _, name in ROWS}
    ids, names = zip(*ROWS, strict=True)
    assert [each for each, times in (Counter(ids) + Counter(names)).items() if times > 1] == []
