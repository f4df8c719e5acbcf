"""`manifold up`, `down` and `status`: the embedded platform."""

import typer

from manifold.console._output import FAILED, AsJson, err, handle_errors, out, print_json, settings_or_fail, spinner, table
from manifold.sandbox.platform import supervise
from manifold.sandbox.platform.health import Check, as_started
from manifold.sandbox.platform.programs import programs
from manifold.settings import Settings


@handle_errors
def up() -> None:
    """Start the embedded platform in the background; return when all of it is healthy."""
    settings = settings_or_fail()
    with spinner("starting the platform", quiet=False):
        addresses = supervise.up(settings, progress=lambda name, doing: err.print(f"  {name}: {doing}", highlight=False))
    out.print(table("Manifold is up.", ("what", "where"), _address_rows(settings, addresses)))
    out.print("stop it with: make down")


@handle_errors
def down() -> None:
    """Stop the embedded platform; its state stays."""
    settings = settings_or_fail()
    with spinner("stopping the platform", quiet=False):
        was_running = supervise.down(settings)
    out.print("Manifold is down." if was_running else "Nothing was running.")


@handle_errors
def status(as_json: AsJson = False) -> None:
    """Show the platform's health and addresses; exit status 0 if it is ready to serve, else 1."""
    settings = settings_or_fail()
    platform = supervise.status(settings)
    if as_json:
        print_json(platform.to_json())
    else:
        rows = [(name, _describe_health(check)) for name, check in platform.checks.items()]
        rows.append(("queues", platform.queues))
        out.print(table("ready to serve" if platform.healthy else "not ready", ("program", "health"), rows))
        out.print(table("", ("what", "where"), _address_rows(settings, platform.addresses)))
    if not platform.healthy:
        raise typer.Exit(FAILED)


def _describe_health(check: Check) -> str:
    """Say whether the program is healthy, or why not; then the problems that it reports itself, separated by semicolons."""
    health = "healthy" if check.healthy else (check.reason or "not healthy")
    reported_problems = check.details.get("problems", ())
    return "; ".join([health, *reported_problems])


def _address_rows(settings: Settings, addresses: supervise.Addresses) -> list[tuple[str, str]]:
    """Return (name, address) for each server and folder. Airflow and the AMQP door are included only if the platform has them."""
    kinds = {program.kind for program in programs(as_started(settings))}
    rows = _mqtt_rows(addresses)
    if "airflow" in kinds:
        rows.append(("Airflow", addresses.airflow))
        rows.append(("Airflow log-in", "operator, with the password that `manifold password` prints"))
    catalog = addresses.catalog
    rows += [
        ("Redis", addresses.redis),
        ("archive", addresses.archive),
        ("Iceberg catalog", f"{catalog['name']} ({catalog['type']}) {catalog['uri']}"),
        ("warehouse", catalog["warehouse"]),
        ("quality reports", addresses.reports),
        ("API", f"{addresses.api}/api/v1"),
    ]
    if "signals" in kinds:
        rows.append(("AMQP", addresses.amqp))
    rows.append(("secrets", addresses.secrets))
    return rows


def _mqtt_rows(addresses: supervise.Addresses) -> list[tuple[str, str]]:
    """The broker's addresses: one if vehicles and services connect to the same, else one for each."""
    if addresses.mqtt == addresses.mqtt_services:
        return [("MQTT, for vehicles and platform", addresses.mqtt)]
    return [("MQTT, for vehicles", addresses.mqtt), ("MQTT, for services and publishers", addresses.mqtt_services)]
