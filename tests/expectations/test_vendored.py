"""The vendored style sheet equals that of its package, and its licence lies next to it."""

import hashlib
import re

from manifold.lake.reports import STYLE
from tests.support.servers import ROOT

FOLDER = ROOT / "expectations" / "pages" / "static"
ROW = re.compile(r"^\| `([^`]+)` \| .* \| `([0-9a-f]{64})` \| \w+, `([^`]+)` \|$", re.MULTILINE)


def test_every_vendored_file_is_listed_with_checksum_and_licence() -> None:
    rows = ROW.findall((FOLDER / "README.md").read_text())

    assert {file.name for file in FOLDER.iterdir()} == {"README.md", *(name for row in rows for name in (row[0], row[2]))}
    assert {name: digest for name, digest, _ in rows} == {
        name: hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() for name, _, _ in rows
    }
    assert (FOLDER.parent / STYLE).is_file()
