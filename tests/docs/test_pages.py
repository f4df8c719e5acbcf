"""What pages say exists: commands and their options, settings, other pages, pictures. `python -m tests.docs` replays a page."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from manifold.console._app import make_app
from manifold.settings import FORMER_NAMES, Settings
from tests.docs.page import Step, steps
from tests.support.servers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
OTHERS = {"MANIFOLD_HOME", "MANIFOLD_FILE", *FORMER_NAMES}  # those that name folders and files, and those that once were settings


@pytest.fixture(params=PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def commands(text: str) -> list[list[str]]:
    """Each `manifold …` of a page's code, as words; what a shell would have to fill in is left out."""
    lines = re.findall(r"^(?:[$>] )?(?:\.venv/bin/)?(manifold .*)$", text, re.MULTILINE)
    lines += re.findall(r"`(manifold [^`]+)`", text)
    plain = [re.split(r"\s[|>&#;]|…", line)[0] for line in lines]
    return [shlex.split(line)[1:] for line in plain if not re.search(r"[$<|\[\]]", line)]


@cache
def manifold() -> Any:
    """Return the command with all its commands."""
    return typer.main.get_command(make_app())


def refusal(words: list[str]) -> str | None:
    """Why the command line is not understood; None where it is."""
    command: Any = manifold()
    for place, word in enumerate(words):
        known = {name for parameter in command.params for name in parameter.opts}
        if hasattr(command, "commands") and word in known:
            return None
        if not hasattr(command, "commands"):
            named = [word.partition("=")[0] for word in words[place:] if word.startswith("--")]
            unknown = (
                []
                if command.context_settings.get("ignore_unknown_options")
                else [name for name in named if name not in known | {"--help"}]
            )
            return f"{command.name} has no {unknown}" if unknown else None
        if word not in command.commands:
            return f"there is no command {word}"
        command = command.commands[word]
    return None


def test_every_command_that_a_page_names_is_there_with_its_options(page: Path) -> None:
    assert {" ".join(words): why for words in commands(page.read_text()) if (why := refusal(words))} == {}


def test_a_command_that_is_not_there_is_found_out() -> None:
    assert commands("Say `manifold gc --dri`, or:\n$ manifold gcc | tail\n") == [["gcc"], ["gc", "--dri"]]
    assert refusal(["gcc"]) == "there is no command gcc"
    assert refusal(["gc", "--dri"]) == "gc has no ['--dri']"
    assert refusal(["vin", "show", "VIN-1", "--json"]) is None


def test_every_setting_that_a_page_names_is_one(page: Path) -> None:
    known = {f"MANIFOLD_{name.upper()}" for name in Settings.model_fields} | OTHERS
    assert set(re.findall(r"\bMANIFOLD_[A-Z0-9_]+[A-Z0-9]\b", page.read_text())) - known == set()


def test_every_page_and_picture_that_a_page_leads_to_is_there(page: Path) -> None:
    near = [target for target in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in near if not (page.parent / target).exists()] == []


def test_every_picture_is_shown_on_some_page() -> None:
    shown = {(page.parent / target).resolve() for page in PAGES for target in LINK.findall(page.read_text())}
    assert set((ROOT / "docs" / "img").glob("*.png")) - shown == set()


def test_an_output_may_differ_from_its_page_in_numbers_and_omissions_only() -> None:
    (first, second) = steps("```console\n$ echo a\n> echo b\nseq     state\n9120…   open\n…\nreport: /…/x.html\n$ true\n```\n")

    assert first.command == "echo a\necho b"
    assert first.is_said_by("seq state\n815 open\nmore\nand more\nreport: /tmp/x.html")
    assert not first.is_said_by("seq state\n815 dropped\nreport: /tmp/x.html")
    assert not first.is_said_by("error: something\nseq state\n815 open\nreport: /tmp/x.html")
    assert second == Step("true", "")
    assert not second.is_said_by("something")


def test_every_file_of_the_project_that_a_page_names_is_there(page: Path) -> None:
    rooms = "|".join(sorted(folder.name for folder in ROOT.iterdir() if folder.is_dir() and not folder.name.startswith(".")))
    named = re.findall(rf"\b((?:{rooms})/[\w/]*\w\.(?:py|lua|md|yaml|conf|sh))\b", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_each_rule_of_the_index_is_where_it_is_said_to_be() -> None:
    _, _, index = (ROOT / "docs/architecture.md").read_text().partition("## Where is the rule that …?")
    rows = re.findall(r"^\| (.+) \| `(.+)` \| `(.+)` \|$", index, re.MULTILINE)
    assert len(rows) >= 20
    assert [(rule, path) for rule, path, name in rows if not is_defined(name, ROOT / path)] == []


def is_defined(name: str, path: Path) -> bool:
    """Whether a file of Python defines the name, also as a field or attribute; of another kind, whether it has the text."""
    text = path.read_text()
    if path.suffix != ".py":
        return name in text
    return re.search(rf"^ *(?:(?:async )?def|class) {name}\b|^ *(?:self\.)?{name}(?:: [^=]+)? = ", text, re.MULTILINE) is not None
