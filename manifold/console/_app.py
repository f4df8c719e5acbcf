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

NAME = "manifold"
COMPLETE_VARIABLE = "_MANIFOLD_COMPLETE"  # the environment variable by which a shell requests completions from Typer
# The panels of --help.
RUN, ASK, LAKE = "The platform", "Send and ask", "The lake and the queues"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of commands if `attribute` names a Typer application."""

    name: str
    panel: str
    module: str = ""  # module of this package; default: the command's name after an underscore
    attribute: str = ""  # attribute of the module; default: the command's name
    accepts_any_arguments: bool = False  # also unknown options, and --help, which it passes on to another program
    logs: bool = True  # whether any code that it loads may log

    def add_to(self, app: typer.Typer) -> None:
        """Import the command and add it to `app`."""
        module_name = self.module or f"_{self.name}"
        module = import_module(f"manifold.console.{module_name}")
        command = getattr(module, self.attribute or self.name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=self.name, rich_help_panel=self.panel)
            return
        context_settings: dict[str, Any] = {}
        if self.accepts_any_arguments:
            context_settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
        app.command(self.name, rich_help_panel=self.panel, context_settings=context_settings)(command)


COMMANDS = (
    Command("up", RUN, "_platform"),
    Command("down", RUN, "_platform"),
    Command("status", RUN, "_platform"),
    Command("settings", RUN),
    Command("doctor", RUN),
    Command("demo", RUN),
    Command("ship", RUN),
    Command("certificates", RUN, attribute="app"),
    Command("airflow", RUN, accepts_any_arguments=True),
    Command("password", RUN, "_airflow"),
    Command("send", ASK),
    Command("vin", ASK, "_ask", "vin_app", logs=False),
    Command("batch", ASK, "_ask", "batch_app", logs=False),
    Command("data", ASK, attribute="app", logs=False),
    Command("campaign", ASK, attribute="app"),
    Command("ecq", ASK, attribute="app"),
    Command("signals", ASK, attribute="app", logs=False),
    Command("queue", ASK, attribute="app", logs=False),
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
    Command("quarantine", LAKE, attribute="app"),
)


class Overview(TyperGroup):
    """The `manifold` command, whose help has one line per command, so that all of it fits a screen."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; if there are none, print the help and exit with status 2.

        Typer's `parse_args` relies on `get_help` to print the help, but the `get_help` of this class only returns it.
        """
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx))
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """Return the usage and the first clause of each command's help, by panel."""
        options = " | ".join(option.opts[0] for option in self.get_params(ctx))
        lines = [self.help or "", f"Usage: {NAME} [{options}] COMMAND …"]
        for panel in dict.fromkeys(command.panel for command in COMMANDS):
            lines += ["", panel]
            for command in COMMANDS:
                if command.panel == panel:
                    first_clause = re.split(r"[;.](?=\s|$)", self.commands[command.name].help or "")[0]
                    lines.append(f"  {command.name:13} {first_clause}")
        return "\n".join(lines)


def make_app(name: str | None = None) -> typer.Typer:
    """Build the application with only the command of this name; with all commands if the name is None or unknown."""
    app = typer.Typer(
        cls=Overview,
        help="Manifold: data to a million vehicles, in order, until they acknowledge, and every message on record.",
        pretty_exceptions_enable=False,
    )
    commands = [command for command in COMMANDS if command.name == name] or COMMANDS
    may_log = any(command.logs for command in commands)
    app.callback()(configure_quiet_logging if may_log else skip_logging)
    for command in commands:
        command.add_to(app)
    return app


def _print_version(is_given: bool) -> None:
    if is_given:
        sys.stdout.write(f"manifold {version('manifold')}\n")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")]


def configure_quiet_logging(_version: Version = False) -> None:
    """Configure logging so that only warnings and errors are shown; the command itself prints what it did."""
    from manifold.runtime.log import configure_logging  # imported here, so that --help is fast

    configure_logging("console", level="warning")


def skip_logging(_version: Version = False) -> None:
    """Do not configure logging: for commands that never log, importing the logging library would take a tenth of their time."""


def main() -> None:
    """Run the console script."""
    collect_rarely()
    # Give Python's stderr a descriptor of its own: `_job` redirects descriptor 2, to which C libraries and the JVM write.
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding=sys.stderr.encoding)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal may lack characters, and an encoding error would hide the output
            stream.reconfigure(errors="replace")
    make_app(command_name(sys.argv, os.environ))(prog_name=NAME)


def command_name(args: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The name of the command on the command line `args`, its first argument; None if that is an option or missing.

    If a shell requests completions, the command line that it completes is in the environment instead.
    """
    if COMPLETE_VARIABLE in env:
        args = (env.get("_TYPER_COMPLETE_ARGS") or env.get("COMP_WORDS", "")).split()  # the variables of zsh and of bash
    if len(args) < 2 or args[1].startswith("-"):
        return None
    return args[1]
