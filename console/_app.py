"""Every command of `manifold`, by name."""

import typer

from adapters.log import configure_logging
from console import _ask, _doctor, _lake, _platform, _quarantine, _send, _settings
from console._demo import demo

app = typer.Typer(
    help="Manifold: data to a million vehicles, in order, until they acknowledge, and every message on record.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def quiet() -> None:
    """Library logs only where something is wrong; the command itself says what it did."""
    configure_logging("console", level="warning")


RUN, ASK, LAKE = "The platform", "Send and ask", "The lake and the queues"
app.command(rich_help_panel=RUN)(_platform.up)
app.command(rich_help_panel=RUN)(_platform.down)
app.command(rich_help_panel=RUN)(_platform.status)
app.command(rich_help_panel=RUN)(_settings.settings)
app.command(rich_help_panel=RUN)(_doctor.doctor)
app.command(rich_help_panel=RUN)(demo)
app.command(rich_help_panel=ASK)(_send.send)
app.add_typer(_ask.vin_app, name="vin", rich_help_panel=ASK)
app.add_typer(_ask.batch_app, name="batch", rich_help_panel=ASK)
app.command(rich_help_panel=LAKE)(_lake.ingest)
app.command(rich_help_panel=LAKE)(_lake.populate)
app.command(rich_help_panel=LAKE)(_lake.rebuild)
app.command(rich_help_panel=LAKE)(_lake.report)
app.add_typer(_quarantine.app, name="quarantine", rich_help_panel=LAKE)
