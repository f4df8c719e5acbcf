"""`python -m manifold.sandbox.tap`: the event tap in the foreground.

It cannot detect messages that the broker drops from a session (`delivery_dropped`), nor `dropped` for publishers on MQTT 3.1.1 or
with QoS 0. If it is killed, events in transit are lost: acknowledgements, which the dispatcher's deadline covers, and
`disconnected` for connected vehicles, which reconnect and cause a new `connected`.
"""

import gc
import resource
from typing import Annotated

import typer
import uvloop
from prometheus_client import REGISTRY

from manifold.contracts.errors import ManifoldError
from manifold.contracts.tls import INNER_CA, OF_INNER, REVOKED, SECRETS
from manifold.runtime.expiry import Kind, export_certificate_expiry
from manifold.runtime.http import serve
from manifold.runtime.log import configure_logging
from manifold.runtime.service import stop_event
from manifold.sandbox.tap._metrics import TapMetrics
from manifold.sandbox.tap.service import Tap
from manifold.settings import Settings, load_settings


async def _main(settings: Settings, emit_delivered: bool) -> None:
    tap = Tap(settings, emit_delivered=emit_delivered)
    REGISTRY.register(TapMetrics(tap))
    export_certificate_expiry(settings, others=_unmonitored_files(settings))
    token = settings.http_token.get_secret_value()
    async with serve(settings.host, settings.tap_port, tap.health, token=token, tls_files=settings.http_tls_files):
        await tap.run(stop_event())


def _unmonitored_files(settings: Settings) -> dict[str, Kind]:
    """Return the paths and kinds of the certificate files whose expiry no other service exports. Empty without TLS.

    Jobs and console have certificates but no /metrics. The CA of Redis and RabbitMQ and the revocation list belong to no service.
    """
    if not settings.tls:
        return {}
    kind_by_file = {
        OF_INNER.format("jobs"): Kind.CERTIFICATE,
        f"{settings.mqtt_username_publisher}.pem": Kind.CERTIFICATE,
        f"{settings.mqtt_username_campaigns}.pem": Kind.CERTIFICATE,
        INNER_CA: Kind.CA,
        REVOKED: Kind.REVOKED,
    }
    return {f"{settings.home}/{SECRETS}/{file}": kind for file, kind in kind_by_file.items()}


def main(
    delivered: Annotated[
        bool, typer.Option("--delivered", help="Emit `delivered` events too, which no service here reads.")
    ] = False,
) -> None:
    """Proxy between vehicles and Mosquitto that emits EMQX's events."""
    configure_logging("tap")
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # the tap opens two sockets per vehicle
    gc.set_threshold(100_000, 50, 100)  # collect rarely: a full collection takes milliseconds, and sessions contain no cycles
    try:
        uvloop.run(_main(load_settings(), delivered))
    except* ManifoldError as group:
        typer.echo("; ".join(str(problem) for problem in group.exceptions), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    typer.run(main)
