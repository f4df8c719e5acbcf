"""Runs an erasure for the console, and prints what was removed and what the search of every file found."""

import json
import sys

import typer

from manifold.console._output import FAILED, out, print_json, spinner, table
from manifold.runtime.log import configure_logging
from manifold.settings import Settings
from pipelines.erasure.run import erase_vehicle

MAX_SHOWN_FINDINGS = 20


def erase_and_print(
    settings: Settings, name: str, why: str, *, wait_s: float, as_json: bool, erased_letters: int | None = None
) -> None:
    """Erase the vehicle or device of this name, and print the result.

    `erased_letters` is the number of dead letters that were removed before; None if dead letters were not searched.

    Raises:
        typer.Exit: the search of every file found the name.
    """
    configure_logging("console", level="warning")  # the commands that call this are declared as not logging (`_app.COMMANDS`)
    with spinner("erasing", quiet=as_json or not sys.stderr.isatty()) as set_status:
        done = erase_vehicle(settings, name, why=why, wait_s=wait_s, say=set_status)
    if as_json:
        letter_field = {} if erased_letters is None else {"dead_letters": erased_letters}
        print_json(json.loads(done.to_json()) | letter_field | {"proved": done.proved})
    else:
        counts = [
            ("entries in the queues", done.entries),
            ("segments rewritten", done.segments),
            ("messages of these segments changed or removed", done.messages),
        ]
        if erased_letters is not None:
            counts.append(("dead letters of RabbitMQ", erased_letters))
        counts += [(f"rows of {table_name}", rows) for table_name, rows in done.rows.items()]
        counts += [("snapshots expired", done.snapshots), ("files that no snapshot references any more", done.files)]
        out.print(table(f"erasure {done.erasure_id}", ("what went", "how many"), counts))
        if done.proved:
            out.print(f"{done.searched} files of archive and warehouse were searched, and the queues: found nothing")
        else:
            rows = [(finding.where, finding.what, finding.count) for finding in done.found[:MAX_SHOWN_FINDINGS]]
            out.print(table(f"STILL NAMED in {len(done.found)} places", ("where", "what", "times"), rows))
    if not done.proved:
        raise typer.Exit(FAILED)
