"""`manifold data show`: what was published under a data_id, from the queues, the archive and the lake."""

import base64
import sys
from pathlib import Path
from typing import Annotated

import typer

from manifold.console._history import history_of
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts.names import is_id

app = typer.Typer(help="Show what was published under a data_id.", no_args_is_help=True)
DataIdArgument = Annotated[str, typer.Argument(metavar="DATA_ID", help="The data's id; of inline data, the SHA-1.")]
Output = Annotated[str, typer.Option("--output", metavar="FILE", help="Write the bytes to this file; - is stdout.")]


@app.callback()
def _group() -> None:
    """Do nothing. Because of this callback, Typer makes `show` a subcommand although it is the only command."""


@app.command("show")
@handle_errors
def show(data_id: DataIdArgument, as_json: AsJson = False, output: Output = "") -> None:
    """Size and SHA-1 of the data, and when and how often it was published. Its bytes: in the JSON (base64), or in a file."""
    if not is_id(data_id):
        fail(f"data_id {data_id!r} must be 1 to 128 printable ASCII characters without space, + # /", USAGE)
    if output == "-" and as_json:
        fail("--output - and --json both write to stdout; name a file, or leave --json out", USAGE)
    with history_of(settings_or_fail()) as history:
        data = history.data(data_id)
    if data is None:
        fail(f"data_id {data_id!r} is neither in the queues, nor in the archive, nor in the lake")
    if output == "-":
        sys.stdout.buffer.write(data.payload)
        return
    if output:
        try:
            Path(output).write_bytes(data.payload)
        except OSError as exc:
            fail(f"--output {output}: {exc.strerror}; name a file that can be written")
    facts = data.facts(data_id)
    if as_json:
        if not output:
            facts = facts | {"data": base64.b64encode(data.payload).decode()}
        print_json(facts)
        return
    out.print(table("", ("what", "value"), facts.items()))
    out.print(f"the bytes are in {output}" if output else "the bytes: --output FILE, or - for stdout")
