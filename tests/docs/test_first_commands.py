"""The two commands of the README do all the set-up that they need, and what must pass before a change lands is nothing else."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.stores.servers import REMEDY, require
from tests.support.servers import ROOT

SETUP, STORES = "infra/setup.sh", "infra/stores/setup.sh"


def done_by(verb: str, checkout: Path) -> list[str]:
    """The scripts and the tests that `make <verb>` would run in a fresh clone, in their order."""
    for file in ("Makefile", "requirements.lock", "pyproject.toml", SETUP, STORES, "infra/stores/pom.xml"):
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, checkout / file)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # `make check` may have called us
    printed = subprocess.run(["make", "-n", verb], cwd=checkout, env=env, capture_output=True, text=True, check=True).stdout
    return re.findall(r"infra/[a-z/]*setup\.sh|bin/pytest|manifold demo", printed)


TESTS = ["bin/pytest", "bin/pytest"]  # the second for what failed in the first


@pytest.mark.parametrize(("verb", "steps"), [("demo", [SETUP, "manifold demo"]), ("test", [SETUP, STORES, *TESTS])])
def test_the_readmes_commands_prepare_what_they_need(verb: str, steps: list[str], tmp_path: Path) -> None:
    assert re.findall(r"^make (\w+) ", (ROOT / "README.md").read_text(), re.MULTILINE) == ["demo", "test"]

    assert done_by(verb, tmp_path) == steps


def test_make_help_fits_a_screen() -> None:
    lines = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_a_change_is_checked_by_the_checks_the_readme_command_and_the_image_only() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert [line for line in lines if line.startswith("make")] == ["make check", "make test", "make image"]


def test_a_test_whose_server_is_missing_is_skipped_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=rf"^absent.jar not here; {re.escape(REMEDY)}$"):
        require(tmp_path, tmp_path / "absent.jar")
