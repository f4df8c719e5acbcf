"""`manifold certificates`: certificates of the sandbox's CA for vehicles and publishers, issued, revoked, listed."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from manifold.console._output import AsJson, fail, handle_errors, out, print_json, settings_or_fail, table

app = typer.Typer(help="Who is known at the front door where TLS is on.", no_args_is_help=True)
CLIENTS = "clients"  # a folder among the secrets: what was issued here, a file each
Name = Annotated[str, typer.Argument(help="Its common name: a vehicle's client id, or a user name that begins with sdv-pub-.")]
Days = Annotated[float, typer.Option(help="How long it lasts, in days.", min=0.001, max=365)]
Output = Annotated[Path | None, typer.Option(help="The file to write; without it, one in the folder of secrets.")]


@app.command()
@handle_errors
def issue(name: Name, days: Days = 30, output: Output = None, as_json: AsJson = False) -> None:
    """Issue a certificate and its key, in one file that only you can read. An earlier one of that name stays good."""
    from manifold.runtime import secret_files
    from manifold.runtime.secret_files import write
    from manifold.sandbox.platform import certificates

    home = settings_or_fail().home
    made = certificates.issue(home, name, days=days)
    file = (output or secret_files.folder(home) / CLIENTS / f"{quote(name, safe='')}.pem").absolute()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, made)
    except OSError as exc:
        certificates.revoke(home, [certificates.serial_of(made)])
        fail(f"{file} cannot be written ({exc.strerror}); the certificate is revoked: issue it again with --output elsewhere")
    if as_json:
        print_json({"name": name, "serial": f"{certificates.serial_of(made):x}", "file": str(file)})
    else:
        out.print(f"{name} is known for {days:g} days by {file}")


@app.command()
@handle_errors
def revoke(name: Name, as_json: AsJson = False) -> None:
    """Revoke all certificates of that name: a client that shows one is disconnected within seconds."""
    from manifold.sandbox.platform import certificates, issued
    from manifold.sandbox.platform.authority import FRONT_DOOR

    home = settings_or_fail().home
    mine = [row for row in issued.of_home(home) if row.name == name]
    found = [row.serial for row in mine if FRONT_DOOR.is_issuer(row.issuer)]
    if not found:
        fail(
            f"{name} is known behind the front door alone, where nothing can be revoked: remove its file, then make up"
            if mine
            else f"no certificate with the common name {name} was issued here that has not ended: `manifold certificates list`"
        )
    certificates.revoke(home, found)
    if as_json:
        print_json({"name": name, "serials": [f"{serial:x}" for serial in found]})
    else:
        out.print(f"{len(found)} of {name} revoked")


@app.command("list")
@handle_errors
def list_issued(as_json: AsJson = False) -> None:
    """All that were issued here and have not ended, the oldest first. No key is shown."""
    from manifold.sandbox.platform import certificates, issued

    home = settings_or_fail().home
    gone = certificates.revoked(home)
    rows = [(row.name, f"{row.serial:x}", row.issuer, row.ends_at, row.serial in gone) for row in issued.of_home(home)]
    columns = ("name", "serial", "issuer", "ends_at", "revoked")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    out.print(table("", ("name", "serial", "issued by", "ends", "revoked"), rows))
