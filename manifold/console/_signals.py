"""`manifold signals`: shows and erases the X-ray signals of a device, with the groups for keys and dead letters."""

from functools import partial
from typing import Annotated

import typer

from manifold.console._erasing import WAIT_S, Wait, Why, Yes, erase
from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table
from manifold.console._signal_keys import app as keys_app
from manifold.console._signals_amqp import dlq_app, erase_letters, send
from manifold.settings import Settings

app = typer.Typer(
    help="Send, show or erase X-ray signals; manage the keys of their payloads, and their dead letters.", no_args_is_help=True
)
app.add_typer(keys_app, name="keys")
app.add_typer(dlq_app, name="dlq")
app.command()(send)
Device = Annotated[str, typer.Argument(metavar="DEVICE", help="The device's id.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many, the newest.")]
MAX_VALUES_SHOWN = 4  # readings, and anomalies, of each signal; --json prints all


@app.command("erase")
@handle_errors
def device_erase(
    device_id: Device,
    why: Why,
    yes: Yes = False,
    wait: Wait = WAIT_S,
    leave_letters: Annotated[
        bool, typer.Option("--leave-dead-letters", help="Leave dead letters in RabbitMQ, where they expire after a week.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a device from dead letters, archive, lake and queues, and search every file for it; exit status 1 if it is found."""
    settings = _settings_for(device_id)
    erase_dead_letters = None
    if settings.with_signals and not leave_letters:
        erase_dead_letters = partial(erase_letters, settings, device_id)
    erase(settings, device_id, why, yes=yes, wait_s=wait, as_json=as_json, erase_letters=erase_dead_letters)


@app.command()
@handle_errors
def show(device_id: Device, limit: Limit = 100, as_json: AsJson = False) -> None:
    """The newest signals of a device, oldest first: readings and anomalies, from the lake and from signals not yet ingested."""
    settings = _settings_for(device_id)
    from manifold.contracts.seq import MAX_SEQ
    from manifold.history.signals import device_signals
    from manifold.lake.catalog import open_catalog

    found = device_signals(settings, open_catalog(settings), device_id, limit=limit, before=MAX_SEQ)
    if as_json:
        print_json(found.to_json())
        return
    if not found.signals:
        out.print(f"{device_id}: no signal is known")
        return
    rows = []
    for signal in found.signals:
        readings = ", ".join(f"{each['type']} {each['value']:g} {each['unit']}" for each in signal.readings[:MAX_VALUES_SHOWN])
        anomalies = ", ".join(f"{each['type']} ({each['severity']})" for each in signal.anomalies[:MAX_VALUES_SHOWN])
        rows.append((signal.seq, signal.captured_at, signal.problem or readings, anomalies))
    out.print(table(f"{device_id}, the newest {len(rows)}", ("seq", "captured at", "readings", "anomalies"), rows))


def _settings_for(device_id: str) -> Settings:
    """Load the settings; exit if this is not the id of a device, or the settings are invalid."""
    from manifold.contracts.signals.messages import DEVICE_ID

    if not DEVICE_ID.fullmatch(device_id):
        fail(f"device id {device_id!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ -", USAGE)
    return settings_or_fail()
