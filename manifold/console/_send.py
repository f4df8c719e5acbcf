"""`manifold send`: publish data and triggers, like the platform."""

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from manifold.console._output import FAILED, USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.contracts import topics
from manifold.contracts.messages import Receipt, ReceiptStatus, sha1_hex
from manifold.messaging.publisher import Publisher
from manifold.settings import Settings

Sent = list[tuple[str, Receipt]]  # of each message: what it is, and the recorder's receipt


@handle_errors
def send(
    vins: Annotated[list[str] | None, typer.Argument(help="VINs to send to.", show_default=False)] = None,
    vins_from: Annotated[Path | None, typer.Option(help="File with one VIN a line.", show_default=False)] = None,
    data_from: Annotated[Path | None, typer.Option("--data", help="File with the payload.", show_default=False)] = None,
    data_id: Annotated[str, typer.Option(help="Name of the data; default: the SHA-1 of the payload.", show_default=False)] = "",
    request_id: Annotated[
        str, typer.Option(help="Name of the request; default: task_send_<milliseconds>.", show_default=False)
    ] = "",
    trigger_from: Annotated[
        Path | None, typer.Option("--trigger", help="File with a whole trigger, sent as it is.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Publish data, a trigger for some VINs, or both; wait for the recorder's receipts."""
    settings = settings_or_fail()
    recipients = list(vins or [])
    if vins_from:
        recipients += _read_lines(vins_from)
    payload = _read_file(data_from) if data_from else None
    trigger = _read_file(trigger_from) if trigger_from else None
    if recipients and payload is None and not data_id:
        fail(f"{recipients[0]} has no data to get; give --data FILE or --data-id ID", USAGE)
    if payload is None and trigger is None and not recipients:
        fail("there is nothing to send; give --data FILE, or VINs with --data-id ID, or --trigger FILE", USAGE)
    if payload is not None and not data_id:
        data_id = sha1_hex(payload)
    request_id = request_id or f"task_send_{time.time_ns() // 1_000_000}"
    sent = asyncio.run(_send(settings, payload, data_id, recipients, request_id, trigger))
    _show(sent, as_json)
    if any(receipt.status is ReceiptStatus.REFUSED for _, receipt in sent):
        raise typer.Exit(FAILED)


async def _send(
    settings: Settings, payload: bytes | None, data_id: str, vins: list[str], request_id: str, trigger: bytes | None
) -> Sent:
    """Publish the data `payload`, a trigger that names `vins`, and a trigger with the payload `trigger`; return their receipts.

    A message is left out if its payload is None, or if there are no VINs. `request_id` and `data_id` are those of the VINs'
    trigger.
    """
    sent: Sent = []
    async with Publisher(settings) as publisher:
        if payload is not None:
            sent.append((f"data {data_id}", await publisher.data(data_id, payload)))
        if vins:
            sent.append((f"trigger {request_id}", await publisher.trigger(vins, request_id, data_id)))
        if trigger is not None:
            sent.append(("trigger", await publisher.publish(topics.TRIGGER, trigger)))
    return sent


def _show(sent: Sent, as_json: bool) -> None:
    if as_json:
        print_json([{"message": what, **asdict(receipt)} for what, receipt in sent])
        return
    rows = [(what, receipt.seq, receipt.status.value, _explain(receipt)) for what, receipt in sent]
    out.print(table("", ("message", "seq", "status", "why"), rows))


def _explain(receipt: Receipt) -> str | None:
    """Why the message was refused, or which message it repeats; None if it was recorded."""
    if receipt.reason:
        return receipt.reason
    return f"same as {receipt.duplicate_of}" if receipt.duplicate_of else None


def _read_lines(file: Path) -> list[str]:
    """The lines of a file without surrounding spaces, and without empty lines."""
    lines = (line.strip() for line in _read_file(file).decode("utf-8", "replace").splitlines())
    return [line for line in lines if line]


def _read_file(file: Path) -> bytes:
    """The content of a file; exit with an error if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError as exc:
        fail(f"cannot read {file} ({exc.strerror}); name a file that exists", USAGE)
