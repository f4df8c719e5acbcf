"""Options and confirmation shared by `manifold vin erase` and `manifold signals erase`. Does not import the lake."""

from collections.abc import Callable
from typing import Annotated

import typer

from manifold.settings import Settings

Why = Annotated[str, typer.Option(help="Why. The reason is kept on record, so it must not name the vehicle or device.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds for which runs that began before may go on.")]
WAIT_S = 900.0


def erase(
    settings: Settings,
    name: str,
    why: str,
    *,
    yes: bool,
    wait_s: float,
    as_json: bool,
    erase_letters: Callable[[], int] | None = None,
) -> None:
    """Erase a vehicle or device after the user's confirmation, and print the result.

    `erase_letters` removes the device's dead letters and returns their number; None if dead letters are not to be removed.

    Raises:
        typer.Abort: the user declined.
        typer.Exit: the name was still found somewhere.
    """
    if not yes:
        typer.confirm(f"This erases everything accepted until now of {name}, for good. Go on?", abort=True, err=True)
    from manifold.console._erase import erase_and_print

    erased_letters = None if erase_letters is None else erase_letters()
    erase_and_print(settings, name, why, wait_s=wait_s, as_json=as_json, erased_letters=erased_letters)
