"""`manifold signals keys`: lists the keys that seal signals, rewraps them, and generates a new key for the ring."""

from typing import Annotated

import typer

from manifold.console._output import FAILED, AsJson, fail, handle_errors, out, print_json, settings_or_fail, table

app = typer.Typer(help="Keys of signals at rest: days' keys, wrapped by the key ring.", no_args_is_help=True)
Name = Annotated[str | None, typer.Option("--id", help="Its id; without it, one of chance.")]


@app.command("list")
@handle_errors
def list_keys(as_json: AsJson = False) -> None:
    """Each day's key, by which key of the ring it is wrapped, and whether the ring has that one. No key is shown."""
    from manifold.lake.day_keys import DayKeys

    keys = DayKeys.of(settings_or_fail())
    ring = keys.ring.ids
    rows = [(key.key_id, key.day.isoformat(), key.ring_id, key.ring_id in ring, key.wrapped_at) for key in keys.wrapped()]
    columns = ("key_id", "day", "ring_id", "in_ring", "wrapped_at")
    if as_json:
        print_json({"ring": list(ring), "keys": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    out.print(f"key ring: {', '.join(ring) or 'none'}")
    out.print(table("", ("key", "day", "wrapped by", "in the ring", "since"), rows))


@app.command()
@handle_errors
def rotate(as_json: AsJson = False) -> None:
    """Wrap each day's key under the first key of the ring. Then the others can leave it, if nothing is named as gone."""
    from manifold.lake.day_keys import DayKeys

    keys = DayKeys.of(settings_or_fail())
    wrapped, gone = keys.rotate()
    if as_json:
        print_json({"ring_id": keys.ring.current, "wrapped": wrapped, "gone": gone})
    else:
        out.print(f"{wrapped} keys are wrapped again, by {keys.ring.current}")
        if gone:
            out.print(table("NOT IN THE RING: what is sealed under these cannot be read", ("key",), [(key,) for key in gone]))
    if gone:
        raise typer.Exit(FAILED)


@app.command()
@handle_errors
def new(name: Name = None) -> None:
    """Print a new key, as a line of the ring's file. Put it first there, then `manifold signals keys rotate`."""
    from manifold.contracts.errors import SettingsError
    from manifold.lake.key_ring import new_key_line, read_keys

    line = new_key_line(name)
    try:
        read_keys(line, "--id")
    except SettingsError as exc:
        fail(str(exc), FAILED)
    typer.echo(line)
