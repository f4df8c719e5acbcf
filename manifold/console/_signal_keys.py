"""`manifold signals keys`: lists the day keys, which seal signals, rewraps them, and generates a new key for the key ring."""

from typing import Annotated

import typer

from manifold.console._output import FAILED, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table

app = typer.Typer(
    help="Manage the day keys that seal signals at rest, and the key ring that wraps day keys.", no_args_is_help=True
)
Name = Annotated[str | None, typer.Option("--id", help="The key's id; default: a random one.")]


@app.command("list")
@handle_errors
def list_keys(as_json: AsJson = False) -> None:
    """The day keys, which key of the ring wraps each, and whether the ring has that key. The keys themselves are not shown."""
    from manifold.lake.day_keys import DayKeys

    day_keys = DayKeys.of(settings_or_fail())
    ring_ids = day_keys.ring.ids
    rows = [(key.key_id, key.day.isoformat(), key.ring_id, key.ring_id in ring_ids, key.wrapped_at) for key in day_keys.wrapped()]
    if as_json:
        names = ("key_id", "day", "ring_id", "in_ring", "wrapped_at")
        print_json({"ring": list(ring_ids), "keys": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    out.print(f"key ring: {', '.join(ring_ids) or 'none'}")
    out.print(table("", ("key", "day", "wrapped by", "in the ring", "since"), rows))


@app.command()
@handle_errors
def rotate(as_json: AsJson = False) -> None:
    """Rewrap every day key under the first key of the ring. Unless the exit status is 1, the ring's other keys can be removed."""
    from manifold.lake.day_keys import DayKeys

    day_keys = DayKeys.of(settings_or_fail())
    rewrapped, lost_ids = day_keys.rotate()
    if as_json:
        print_json({"ring_id": day_keys.ring.current, "wrapped": rewrapped, "gone": lost_ids})
    else:
        out.print(f"{rewrapped} day keys are rewrapped under {day_keys.ring.current}")
        if lost_ids:
            title = "THE RING CANNOT UNWRAP these day keys, so what is sealed under them cannot be read"
            out.print(table(title, ("key",), [(key_id,) for key_id in lost_ids]))
    if lost_ids:
        raise typer.Exit(FAILED)


@app.command()
@handle_errors
def new(name: Name = None) -> None:
    """Print a new key, as a line for the ring's file. Put it first there, then run `manifold signals keys rotate`."""
    from manifold.contracts.errors import SettingsError
    from manifold.lake.key_ring import new_key_line, read_keys

    line = new_key_line(name)
    try:
        read_keys(line, "--id")  # checks the id; the key itself is valid
    except SettingsError as exc:
        fail(str(exc), FAILED)
    typer.echo(line)
