"""`manifold quarantine ls|show|replay|drop`: lists, shows, replays and drops refused messages."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pyiceberg.catalog import Catalog

from manifold.archive import quarantine
from manifold.archive.quarantine import Replayed, readable
from manifold.archive.refusals import Refusal, RefusalFilter, page, refusal
from manifold.archive.refusals import seqs as seqs_of
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, printable, settings_or_fail, table
from manifold.contracts.errors import Permanent
from manifold.lake.catalog import open_catalog

app = typer.Typer(help="List refused messages, look into one, replay it after a fix, or drop it.", no_args_is_help=True)
NUMBERS = {"ignore_unknown_options": True}  # the seq of a refused file is negative, and must not be parsed as an option

Seqs = Annotated[list[int] | None, typer.Argument(help="Seqs of refused messages.", show_default=False)]
Matching = Annotated[str, typer.Option(help="Only messages whose reason contains this text.", show_default=False)]
Note = Annotated[str, typer.Option(help="Why; it is kept on record.", show_default=False)]
MAX_REASON_CHARS = 60  # in the list


@app.command("ls")
@handle_errors
def list_refused(
    stream: Annotated[
        str | None, typer.Option(help="Only messages of this stream, such as trigger, data or outcome.", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"], help="Only messages received then or later, UTC.", show_default=False
        ),
    ] = None,
    matching: Matching = "",
    include_settled: Annotated[bool, typer.Option("--all", help="Also messages that were replayed or dropped.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List refused messages that are not replayed or dropped yet, the newest first."""
    since_utc = since.replace(tzinfo=UTC) if since else None
    selection = RefusalFilter(stream=stream, since=since_utc, matching=matching, settled=include_settled)
    found = page(open_catalog(settings_or_fail()), selection, limit=limit)
    if as_json:
        print_json([_without_payload(refused) for refused in found.refusals])
        return
    rows = [
        (refused.seq, refused.received_at, refused.stream, refused.state, _shorten(refused.reason)) for refused in found.refusals
    ]
    more = f", {found.total - len(rows)} more" if found.more else ""
    out.print(table(f"{len(rows)} refused{more}", ("seq", "received", "stream", "state", "reason"), rows))


@app.command(context_settings=NUMBERS)
@handle_errors
def show(
    seq: Annotated[int, typer.Argument(help="Seq of the refused message.", show_default=False)],
    payload_to: Annotated[Path | None, typer.Option(help="Write the payload into this file.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show one refused message: its topic, why it was refused, its bytes, and what was done about it."""
    refused = refusal(open_catalog(settings_or_fail()), seq)
    if payload_to is not None:
        try:
            payload_to.write_bytes(refused.payload)
        except OSError as exc:
            fail(f"cannot write {payload_to} ({exc.strerror}); name a file that can be written", USAGE)
    if as_json:
        print_json(_without_payload(refused) | {"payload": readable(refused.payload)})
        return
    rows = [(name, value) for name, value in _without_payload(refused).items() if value is not None]
    out.print(table("", ("what", "says"), rows))
    out.print(printable(readable(refused.payload), kept="\n\t"), highlight=False)


@app.command(context_settings=NUMBERS)
@handle_errors
def replay(
    seqs: Seqs = None,
    matching: Matching = "",
    payload: Annotated[
        Path | None, typer.Option(help="File with the corrected payload, for one message.", show_default=False)
    ] = None,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Write refused messages into the archive again, with their original seq, if the present rules accept them.

    The next `manifold ingest` loads them.
    """
    settings = settings_or_fail()
    catalog = open_catalog(settings)
    selected = _select(catalog, seqs, matching)
    if payload is not None and len(selected) != 1:
        fail(f"--payload is for one message, but {len(selected)} are selected; name one seq", USAGE)
    corrected = _read_file(payload) if payload else None
    now = datetime.now(UTC)
    replayed: list[Replayed] = []
    problems: list[str] = []
    for seq in selected:
        try:
            replayed.append(quarantine.replay(catalog, settings, seq, payload=corrected, note=note, now=now))
        except Permanent as exc:  # this message cannot be replayed; the others may
            problems.append(str(exc))
    if as_json:
        print_json({"replayed": [asdict(message) for message in replayed], "problems": problems})
    elif replayed:
        rows = [
            (message.seq, message.segment, "yes" if message.will_be_sent else "no: older than the retention")
            for message in replayed
        ]
        out.print(table("replayed; `manifold ingest` loads them", ("seq", "segment", "to be sent"), rows))
    if problems:
        fail("; ".join(problems))


@app.command(context_settings=NUMBERS)
@handle_errors
def drop(seqs: Seqs = None, matching: Matching = "", note: Note = "", as_json: AsJson = False) -> None:
    """Mark messages as dropped. Their rows stay until their retention passes."""
    catalog = open_catalog(settings_or_fail())
    dropped = quarantine.drop(catalog, _select(catalog, seqs, matching), note=note, now=datetime.now(UTC))
    if as_json:
        print_json({"dropped": dropped})
    else:
        out.print(f"{len(dropped)} dropped")


def _select(catalog: Catalog, seqs: list[int] | None, matching: str) -> list[int]:
    """Return `seqs`, or the seqs of the messages not replayed or dropped yet whose reason contains the text `matching`.

    Exits with an error unless exactly one of the two is given.
    """
    has_seqs, has_matching = bool(seqs), bool(matching)
    if has_seqs == has_matching:
        fail("give either seqs or --matching TEXT; `manifold quarantine ls` shows seqs and reasons", USAGE)
    return list(seqs) if seqs else seqs_of(catalog, RefusalFilter(matching=matching))


def _without_payload(refused: Refusal) -> dict[str, Any]:
    return {name: value for name, value in asdict(refused).items() if name != "payload"}


def _shorten(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON_CHARS else reason[:MAX_REASON_CHARS] + "…"


def _read_file(file: Path) -> bytes:
    """The content of a file; exit with an error if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as exc:
        fail(f"cannot read {file} ({exc.strerror}); name a file that exists", USAGE)
