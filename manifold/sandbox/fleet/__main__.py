"""`python -m manifold.sandbox.fleet --vehicles 200 --seed 1 --minutes 5`: a fleet on busy roads, against the running platform."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from manifold.contracts.errors import ManifoldError
from manifold.sandbox.fleet import Fleet, vins
from manifold.sandbox.fleet._behaviour_model import DRIVING
from manifold.settings import Settings, load_settings

_REFRESH_S = 0.5  # of the line with the progress
_EVENTS = ("online", "left", "crashed", "cut off")

console = Console()


def main(
    vehicles: Annotated[int, typer.Option(min=1, help="how many")] = 200,
    seed: Annotated[int, typer.Option(help="the same seed gives the same VINs and decisions")] = 1,
    minutes: Annotated[float, typer.Option(min=0, help="how long they drive")] = 5.0,
    list_vins: Annotated[bool, typer.Option("--vins", help="print their VINs and end")] = False,
) -> None:
    """Simulate vehicles: they listen, acknowledge, leave, crash and come back."""
    if list_vins:
        console.print("\n".join(vins(vehicles, seed)), highlight=False)
        return
    try:
        asyncio.run(_drive(load_settings(), vehicles, seed, minutes * 60))
    except ManifoldError as exc:
        console.print(f"fleet: {exc}", style="red", highlight=False)
        raise typer.Exit(1) from exc


async def _drive(settings: Settings, vehicles: int, seed: int, for_s: float) -> None:
    """Let the vehicles drive for `for_s` seconds, or until a signal or a failure to connect, and show what they receive."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with Fleet(settings, vins(vehicles, seed), seed=seed, behaviour=DRIVING) as fleet:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            connecting = asyncio.create_task(_bring_online(fleet, stopped), name="fleet.bring_online")
            ends_at = time.monotonic() + for_s
            while not stopped.is_set():
                remaining_s = ends_at - time.monotonic()
                if remaining_s <= 0:
                    break
                live.update(Text(f"{_progress(fleet)}, {remaining_s:.0f} s left"))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(_REFRESH_S, remaining_s)):
                        await stopped.wait()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
        error = None if connecting.cancelled() else connecting.exception()
        if error is not None:
            raise error
        console.print(_summary(fleet), highlight=False)


async def _bring_online(fleet: Fleet, stopped: asyncio.Event) -> None:
    """Connect all vehicles once; then their behaviour model decides. If that fails, stop the run and re-raise the error."""
    try:
        await fleet.connect()
    except ManifoldError:
        stopped.set()
        raise


def _progress(fleet: Fleet) -> str:
    return (
        f"{len(fleet.online)} of {len(fleet.vins)} online, {len(fleet.received)} received, {len(fleet.acknowledged)} acknowledged"
    )


def _summary(fleet: Fleet) -> str:
    duplicates = fleet.counts.get("duplicates", 0)
    events = ", ".join(f"{event} {fleet.counts.get(event, 0)}×" for event in _EVENTS)
    reached = len({message.vin for message in fleet.received})
    return (
        f"{len(fleet.vins)} vehicles: {events}\n"
        f"{len(fleet.received)} messages received by {reached} of them ({duplicates} flagged as sent before), "
        f"{len(fleet.acknowledged)} acknowledged"
    )


if __name__ == "__main__":
    typer.run(main)
