"""`manifold certificates`: issues, revokes and lists certificates of the sandbox's CA for vehicles and publishers.

With EMQX as the broker, `revoke` bans the vehicle there.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from manifold.console._output import USAGE, AsJson, fail, handle_errors, out, print_json, require_vin, settings_or_fail, table
from manifold.contracts.names import is_service
from manifold.settings import Settings

app = typer.Typer(help="Issue, revoke and list certificates for the front door with TLS.", no_args_is_help=True)
CLIENTS = "clients"  # folder in the secrets folder: a file for each certificate issued here
Name = Annotated[str, typer.Argument(help="Its common name: a vehicle's client id, or a user name that begins with sdv-pub-.")]
Days = Annotated[float, typer.Option(help="How long it lasts, in days.", min=0.001, max=365)]
Output = Annotated[Path | None, typer.Option(help="The file to write; without it, one in the folder of secrets.")]
Undo = Annotated[bool, typer.Option("--undo", help="End the ban of EMQX: the vehicle may connect again.")]
Banned = Annotated[
    float, typer.Option(help="How long EMQX bans it, in days: no less than its certificates last.", min=0.001, max=36500)
]


@app.command()
@handle_errors
def issue(name: Name, days: Days = 30, output: Output = None, as_json: AsJson = False) -> None:
    """Issue a certificate and its key, in one file that only you can read. An earlier one of that name stays valid."""
    from manifold.runtime import secret_files
    from manifold.runtime.secret_files import write
    from manifold.sandbox.platform import certificates

    home = settings_or_fail().home
    pem = certificates.issue(home, name, days=days)
    default_file = secret_files.folder(home) / CLIENTS / f"{quote(name, safe='')}.pem"
    file = (output or default_file).absolute()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(file, pem)
    except OSError as exc:
        certificates.revoke(home, [certificates.serial_of(pem)])
        fail(f"{file} cannot be written ({exc.strerror}); the certificate is revoked: issue it again with --output elsewhere")
    if as_json:
        print_json({"name": name, "serial": f"{certificates.serial_of(pem):x}", "file": str(file)})
    else:
        out.print(f"{name} is known for {days:g} days by {file}")


@app.command()
@handle_errors
def revoke(name: Name, undo: Undo = False, days: Banned = 3650, as_json: AsJson = False) -> None:
    """Revoke all certificates of that name: a client that presents one is disconnected within seconds.

    Where MANIFOLD_EMQX_API_URL is set, EMQX bans the vehicle: it is refused with every certificate, a newer one too.
    """
    settings = settings_or_fail()
    if settings.emqx_api_url:
        _ban(settings, name, undo=undo, days=days, as_json=as_json)
    elif undo:
        fail(f"what is on the revocation list stays there: give {name} a new one, `manifold certificates issue {name}`", USAGE)
    else:
        _revoke_issued(settings, name, as_json=as_json)


def _ban(settings: Settings, vin: str, *, undo: bool, days: float, as_json: bool) -> None:
    """Ban a vehicle at EMQX for `days` and record it as revoked; with `undo`, undo both. Print the result."""
    from redis.exceptions import RedisError

    from dispatcher import revocations
    from manifold.contracts.errors import Retryable
    from manifold.queues import connect

    require_vin(vin)
    if is_service(vin):
        fail(f"{vin} is not a vehicle: EMQX bans client ids, and a service or publisher has several; deny its name in acl.conf")
    until = datetime.now(UTC) + timedelta(days=days)

    async def apply() -> bool:
        async with connect(settings.redis) as redis:
            if undo:
                return await revocations.undo(settings, redis, vin)
            return await revocations.revoke(settings, redis, vin, until)

    if undo:
        state_if_emqx_fails = f"{vin} is still revoked"
        state_if_redis_fails = "EMQX bans it no longer, but it may still be on record as revoked"
    else:
        state_if_emqx_fails = (
            f"{vin} is on record as revoked, but EMQX may let it in until a dispatcher next compares its bans with the record"
        )
        state_if_redis_fails = "EMQX bans it, but it is not on record"
    try:
        has_changed = asyncio.run(apply())
    except Retryable as exc:  # EMQX is unavailable or refuses
        fail(
            f"{state_if_emqx_fails}: {exc}; check MANIFOLD_EMQX_API_URL, MANIFOLD_EMQX_API_KEY and MANIFOLD_EMQX_API_SECRET, "
            "then do it again"
        )
    except RedisError as exc:
        fail(f"{state_if_redis_fails}: Redis is unavailable ({exc}); do it again when MANIFOLD_REDIS_URL answers")
    if as_json:
        print_json({"name": vin, "changed": has_changed, "banned_until": None if undo else until})
    elif undo:
        out.print(f"{vin} may connect to EMQX again" if has_changed else f"{vin} was not revoked")
    elif has_changed:
        out.print(f"EMQX bans {vin} until {until:%Y-%m-%d}: its connection has ended, and new ones are refused")
    else:
        out.print(f"EMQX has banned {vin} already, until {until:%Y-%m-%d} or longer; it stays so")


def _revoke_issued(settings: Settings, name: str, *, as_json: bool) -> None:
    """Revoke all certificates that the sandbox's CA for clients issued to this name, and print the result.

    If there is none, exits with an error that says why.
    """
    from manifold.sandbox.platform import cert_registry, certificates
    from manifold.sandbox.platform.authority import FRONT_DOOR

    home = settings.home
    issued = [row for row in cert_registry.unexpired(home) if row.name == name]
    serials = [row.serial for row in issued if FRONT_DOOR.is_issuer(row.issuer)]
    if not serials and settings.mqtt_url:
        fail(
            f"the broker is not the sandbox's, and MANIFOLD_EMQX_API_URL names no API by which it could ban {name}: set it, with "
            "MANIFOLD_EMQX_API_KEY and MANIFOLD_EMQX_API_SECRET"
        )
    if not serials and issued:
        fail(f"{name} is known behind the front door alone, where nothing can be revoked: remove its file, then make up")
    if not serials:
        fail(f"no certificate with the common name {name} was issued here that has not ended: `manifold certificates list`")
    certificates.revoke(home, serials)
    if as_json:
        print_json({"name": name, "serials": [f"{serial:x}" for serial in serials]})
    else:
        out.print(f"certificates of {name} revoked: {len(serials)}")


@app.command("list")
@handle_errors
def list_issued(as_json: AsJson = False) -> None:
    """The certificates that were issued here and have not expired, oldest first. No key is shown."""
    from manifold.sandbox.platform import cert_registry, certificates

    home = settings_or_fail().home
    revoked_serials = certificates.revoked(home)
    rows = [
        (row.name, f"{row.serial:x}", row.issuer, row.ends_at, row.serial in revoked_serials)
        for row in cert_registry.unexpired(home)
    ]
    columns = ("name", "serial", "issuer", "ends_at", "revoked")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    out.print(table("", ("name", "serial", "issued by", "ends", "revoked"), rows))
