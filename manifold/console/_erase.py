"""Runs an erasure for the console, and prints what was removed and what the search of every file found."""

import json
import sys

import typer

from manifold.console._output import FAILED, out, print_json, table, working
from manifold.runtime.log import configure_logging
from manifold.settings import Settings
from pipelines.erasure.run import erase_vehicle

MAX_SHOWN_FINDINGS = 20


def erase_and_print(settings: Settings, vin: str, why: str, *, wait_s: float, as_json: bool, letters: int | None = None) -> None:
    """Erase a vehicle or device, and print the result.

    `letters` is the number of dead letters that were removed before; None if dead letters were not searched.

    Raises:
        typer.Exit: the search of every file found the name.
    """
    configure_logging("console", level="warning")
    with working("erasing", quiet=as_json or not sys.stderr.isatty()) as say:
        done = erase_vehicle(settings, vin, why=why, wait_s=wait_s, say=say)
    if as_json:
        letter_field = {} if letters is None else {"dead_letters": letters}
        print_json(json.loads(done.to_json()) | letter_field | {"proved": done.proved})
    else:
        counts = [("entries in the queues", done.entries), ("segments written again", done.segments)]
        counts.append(("their messages that named it", done.messages))
        if letters is not None:
            counts.append(("dead letters of RabbitMQ", letters))
        counts += [(f"rows of {name}", rows) for name, rows in done.rows.items()]
        counts += [("snapshots let go", done.snapshots), ("files that only they knew", done.files)]
        out.print(table(f"erasure {done.erasure_id}", ("what went", "how many"), counts))
        if done.proved:
            out.print(f"{done.searched} files of archive and warehouse were searched, and the queues: found nothing")
        else:
            rows = [(finding.where, finding.what, finding.count) for finding in done.found[:MAX_SHOWN_FINDINGS]]
            out.print(table(f"STILL NAMED in {len(done.found)} places", ("where", "what", "times"), rows))
    if not done.proved:
        raise typer.Exit(FAILED)
