"""Every command of `manifold`, by name. For a fast start, only the module of the requested command is imported."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from manifold.runtime.gc_tuning import collect_rarely

NAME, COMPLETES = "manifold", "_MANIFOLD_COMPLETE"  # the variable with which a shell requests completions from Typer
RUN, ASK, LAKE = "The platform", "Send and ask", "The lake and the queues"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands if `what` is a Typer application."""

    name: str
    panel: str
    module: str = ""  # in this package; default: the command's name after an underscore
    what: str = ""  # attribute of the module; default: the command's name
    passes_on: bool = False  # accepts any arguments, including --help
    logs: bool = True  # whether any code that it loads may log

    def join(self, app: typer.Typer) -> None:
        """Import the command and add it to `app`."""
        found = getattr(import_module(f"manifold.console.{self.module or f'_{self.name}'}"), self.what or self.name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name, rich_help_panel=self.panel)
        else:
            anything = (
                {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []} if self.passes_on else {}
            )
            app.command(self.name, rich_help_panel=self.panel, context_settings=anything)(found)


COMMANDS = (
    Command("up", RUN, "_platform"),
    Command("down", RUN, "_platform"),
    Command("status", RUN, "_platform"),
    Command("settings", RUN),
    Command("doctor", RUN),
    Command("demo", RUN),
    Command("ship", RUN),
    Command("certificates", RUN, what="app"),
    Command("airflow", RUN, passes_on=True),
    Command("password", RUN, "_airflow"),
    Command("send", ASK),
    Command("vin", ASK, "_ask", "vin_app", logs=False),
    Command("batch", ASK, "_ask", "batch_app", logs=False),
    Command("data", ASK, what="app", logs=False),
    Command("campaign", ASK, what="app"),
    Command("ecq", ASK, what="app"),
    Command("signals", ASK, what="app", logs=False),
    Command("queue", ASK, what="app", logs=False),
    Command("fleet", ASK, logs=False),
    Command("watch", ASK, logs=False),
    Command("ingest", LAKE, "_lake"),
    Command("stream", LAKE),
    Command("populate", LAKE, "_lake"),
    Command("rebuild", LAKE, "_lake"),
    Command("report", LAKE, "_lake"),
    Command("compact", LAKE, "_housekeeping"),
    Command("gc", LAKE, "_housekeeping"),
    Command("verify", LAKE, "_housekeeping"),
    Command("lake", LAKE, "_lake_maintenance", "app"),
    Command("quarantine", LAKE, what="app"),
)


class Overview(TyperGroup):
    """The `manifold` command, whose help has one line per command, so that all of it fits a screen."""

    def get_help(self, ctx: Any) -> str:
        """Return the usage and the first clause of each command's help, by panel."""
        options = " | ".join(option.opts[0] for option in self.get_params(ctx))
        lines = [self.help or "", f"Usage: {NAME} [{options}] COMMAND …"]
        for panel in dict.fromkeys(command.panel for command in COMMANDS):
            lines += ["", panel]
            for name in (command.name for command in COMMANDS if command.panel == panel):
                first = re.split(r"[;.](?=\s|$)", self.commands[name].help or "")[0]
                lines.append(f"  {name:13} {first}")
        return "\n".join(lines)


def make_app(asked: str | None = None) -> typer.Typer:
    """Build the application with the command `asked`; with all commands if it is None or unknown."""
    app = typer.Typer(
        cls=Overview,
        help="Manifold: data to a million vehicles, in order, until they acknowledge, and every message on record.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    commands = [command for command in COMMANDS if command.name == asked] or COMMANDS
    app.callback()(quiet if any(command.logs for command in commands) else silent)
    for command in commands:
        command.join(app)
    return app


def _say_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"manifold {version('manifold')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")]


def quiet(_version: Version = False) -> None:
    """Library logs only where something is wrong; the command itself says what it did."""
    from manifold.runtime.log import configure_logging  # imported here, so that --help is fast

    configure_logging("console", level="warning")


def silent(_version: Version = False) -> None:
    """Set up nothing: importing the logging library takes a tenth of an answer's time."""


def main() -> None:
    """Run the console script."""
    collect_rarely()
    if isinstance(sys.stderr, TextIOWrapper):  # a separate descriptor, because jobs redirect 2 (libraries' output)
        sys.stderr = os.fdopen(os.dup(sys.stderr.fileno()), "w", 1, sys.stderr.encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal may lack characters, and an encoding error would hide the output
            stream.reconfigure(errors="replace")
    make_app(asked_for(sys.argv, os.environ))(prog_name=NAME)


def asked_for(line: Sequence[str], env: Mapping[str, str]) -> str | None:
    """Return the command of this line, or of the one that a shell is completing; None if an option or nothing comes first."""
    if COMPLETES in env:  # the variables of zsh and bash
        line = (env.get("_TYPER_COMPLETE_ARGS") or env.get("COMP_WORDS", "")).split()
    first = next(iter(line[1:]), "-")
    return None if first.startswith("-") else first
