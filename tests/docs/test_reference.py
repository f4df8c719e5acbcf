"""The generated reference says what the code says, and the site builds without a broken link."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.docs.reference import FOLDER, pages
from tests.support.servers import ROOT

WRITTEN = {"messages.md", "redis.md"}  # by hand; tests/manifold/contracts/test_docs.py compares them with the code


@pytest.fixture(scope="module")
def generated() -> dict[Path, str]:
    return pages()


def test_the_reference_is_current(generated: dict[Path, str]) -> None:
    stale = [file.name for file, text in generated.items() if not file.exists() or file.read_text() != text]
    assert stale == [], "run: python -m infra.docs.reference"


def test_the_reference_has_no_other_page(generated: dict[Path, str]) -> None:
    assert {file.name for file in FOLDER.glob("*.md")} == {file.name for file in generated} | WRITTEN


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    # Not with --quiet: MkDocs then counts no warning, so that --strict refuses nothing.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    warnings = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
    assert (done.returncode, warnings) == (0, [])
    assert (tmp_path / "site" / "index.html").exists()
