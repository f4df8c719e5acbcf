"""Human-readable output: tables that keep identifiers whole, version, completion."""

import io
import re

import pytest
import typer
from rich.console import Console
from rich.progress import Progress

from manifold.console._app import COMMANDS
from manifold.console._demo import STEPS
from manifold.console._output import err, fail, out, printable
from manifold.console._table import Rows, table
from tests.support.console import manifold
from tests.support.servers import ROOT

SEQ, VIN, WHEN = "912216145379983360", "WBA00000000000017", "2026-11-22 05:41:16.123Z"
WHY = "the vehicle said that it has no room left for what it was sent"
COLUMNS = ("seq", "vin", "accepted at", "state", "why")


def rows(count: int = 2) -> Rows:
    return table("what happened", COLUMNS, [(int(SEQ) + n, VIN, WHEN, "failed", WHY) for n in range(count)])


def printed(what: object, *, width: int, terminal: bool) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, color_system=None, soft_wrap=True).print(what)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 200])
@pytest.mark.parametrize("terminal", [True, False])
def test_identifiers_are_never_wrapped(width: int, terminal: bool) -> None:
    text = "\n".join(printed(rows(), width=width, terminal=terminal))

    assert all(text.count(word) == 2 for word in (SEQ[:-1], VIN, WHEN))


def test_without_a_terminal_a_row_is_one_line() -> None:
    lines = printed(rows(5), width=80, terminal=False)

    assert len(lines) == 1 + 1 + 5
    assert all(WHY in line for line in lines[2:])


def test_on_a_terminal_prose_wraps_before_identifiers() -> None:
    lines = printed(rows(1), width=105, terminal=True)

    assert max(map(len, lines)) <= 105
    assert len(lines) > 3, "prose takes more than one line"
    assert " ".join(line[lines[1].index("why") :].strip() for line in lines[2:]) == WHY


def test_a_narrow_terminal_gets_one_field_per_line() -> None:
    lines = printed(rows(2), width=60, terminal=True)

    assert lines[1:5] == [f"seq          {SEQ}", f"vin          {VIN}", f"accepted at  {WHEN}", "state        failed"]
    assert lines.count("") == 1, "between the rows"


def test_what_others_have_written_steers_no_terminal() -> None:
    spoken = "a\x1b[2Jb\nc\u202e größe/温度\ud800"
    escaped = "a\\x1b[2Jb\\nc\\u202e größe/温度\\ud800"

    assert printed(table("", ("why",), [(spoken,)]), width=80, terminal=False)[1].strip() == escaped
    assert printable(spoken, kept="\n") == escaped.replace("\\n", "\n")


@pytest.mark.parametrize("text", ["[/b]", "\\[/b]", "[bold]x", ":car:", "\\", "a\nb"])
def test_what_looks_like_markup_is_printed_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail(f"no {text} here")
    out.print(f"no {text} here")

    told = capsys.readouterr()
    assert (told.err, told.out) == (f"error: no {text} here\n", f"no {text} here\n")


def test_no_command_prints_a_table_of_another_kind() -> None:
    made = re.compile(r"rich\.(table|columns|panel)\b")
    others = [path.name for path in (ROOT / "manifold" / "console").glob("*.py") if made.search(path.read_text())]

    assert sorted(others) == ["_demo.py", "_table.py"], "_demo has a column of its progress"


def test_text_next_to_tables_is_not_wrapped() -> None:
    assert (out.soft_wrap, err.soft_wrap) == (True, True)


@pytest.mark.parametrize("width", [40, 80])
def test_step_durations_are_readable_on_a_narrow_terminal(width: int) -> None:
    progress = Progress(*STEPS)
    progress.add_task("starting the platform: broker, tap, Redis, recorder, dispatcher, Airflow, and what else there is", total=1)

    assert "0:00:00" in "\n".join(printed(progress.get_renderable(), width=width, terminal=True))


def output_of(*arguments: str, **env: str) -> str:
    done = manifold(*arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_version_is_printed() -> None:
    assert output_of("--version").startswith("manifold ")


@pytest.mark.parametrize(
    ("line", "completed"), [("manifold ", {c.name for c in COMMANDS}), ("manifold vi", {"vin"}), ("manifold vin sh", {"show"})]
)
def test_shells_complete_commands(line: str, completed: set[str]) -> None:
    words = str(len(line.split(" ")) - 1)
    bash = output_of(COMP_WORDS=line, COMP_CWORD=words, _MANIFOLD_COMPLETE="complete_bash")
    zsh = output_of(_TYPER_COMPLETE_ARGS=line, _MANIFOLD_COMPLETE="complete_zsh")

    assert set(bash.split()) == completed
    assert all(f'"{name}"' in zsh for name in completed)
