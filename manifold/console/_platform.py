"""`manifold up`, `down` and `status`: the embedded platform."""

import typer

from manifold.console._output import FAILED, AsJson, err, handle_errors, out, print_json, settings_or_fail, table, working
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.health import as_started
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings


@handle_errors
def up() -> None:
    """Start the embedded platform in the background; return when all of it is healthy."""
    settings = settings_or_fail()
    with working("starting the platform", quiet=False):
        addresses = supervise.up(settings, progress=lambda name, doing: err.print(f"  {name}: {doing}", highlight=False))
    out.print(table("Manifold is up.", ("what", "where"), _places(settings, addresses)))
    out.print("stop it with: make down")


@handle_errors
def down() -> None:
    """Stop the embedded platform; its state stays."""
    settings = settings_or_fail()
    with working("stopping the platform", quiet=False):
        ran = supervise.down(settings)
    out.print("Manifold is down." if ran else "Nothing was running.")


@handle_errors
def status(as_json: AsJson = False) -> None:
    """Show how the platform is; exit status 0 if it is ready to serve, else 1."""
    settings = settings_or_fail()
    now = supervise.status(settings)
    if as_json:
        print_json(now.to_json())
    else:
        rows = [
            (name, "; ".join(["healthy" if check.healthy else check.reason or "not healthy", *check.details.get("problems", ())]))
            for name, check in now.checks.items()
        ]
        out.print(table("ready to serve" if now.healthy else "not ready", ("program", "health"), [*rows, ("queues", now.queues)]))
        out.print(table("", ("what", "where"), _places(settings, now.addresses)))
    if not now.healthy:
        raise typer.Exit(FAILED)


def _mqtt(addresses: supervise.Addresses) -> list[tuple[str, str]]:
    if addresses.mqtt == addresses.mqtt_services:
        return [("MQTT, for vehicles and platform", addresses.mqtt)]
    return [("MQTT, for vehicles", addresses.mqtt), ("MQTT, for services and publishers", addresses.mqtt_services)]


def _places(settings: Settings, addresses: supervise.Addresses) -> list[tuple[str, str]]:
    """Return the addresses by name; those of Airflow and the AMQP door only if they are part of the platform."""
    catalog = addresses.catalog
    kinds = {program.kind for program in programs(as_started(settings))}
    airflow = [("Airflow", addresses.airflow), ("its log-in", "operator, with what `manifold password` prints")]
    return [
        *_mqtt(addresses),
        *(airflow if "airflow" in kinds else ()),
        ("Redis", addresses.redis),
        ("archive", addresses.archive),
        ("Iceberg catalog", f"{catalog['name']} ({catalog['type']}) {catalog['uri']}"),
        ("warehouse", catalog["warehouse"]),
        ("quality reports", addresses.reports),
        ("API", f"{addresses.api}/api/v1"),
        *([("AMQP", addresses.amqp)] if "signals" in kinds else ()),
        ("secrets", addresses.secrets),
    ]
