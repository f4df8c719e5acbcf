"""`python -m dispatcher --replica N`: one dispatcher process."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvloop

from dispatcher._service import Dispatcher
from manifold.contracts.errors import Permanent, SettingsError
from manifold.runtime.gc_tuning import freeze_heap
from manifold.runtime.log import configure_logging
from manifold.settings import load_settings


async def _serve(dispatcher: Dispatcher) -> None:
    """Run the dispatcher until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop_signal, stop.set)
    await dispatcher.run(stop)


def main(replica: Annotated[int, typer.Option(min=0, help="Number of this process; each needs its own.")] = 0) -> None:
    """Deliver pending entries to the vehicles that are present."""
    try:
        settings = load_settings()
        configure_logging(f"dispatcher-{replica}", json=settings.log_format == "json", level=settings.log_level)
        freeze_heap()
        uvloop.run(_serve(Dispatcher(settings, replica)))
    except (SettingsError, Permanent) as exc:
        print(f"dispatcher: {exc}", file=sys.stderr)  # noqa: T201  # a user error gets a sentence, not a traceback
        raise SystemExit(2) from exc


if __name__ == "__main__":
    typer.run(main)
