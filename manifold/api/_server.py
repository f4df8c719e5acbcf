"""One API process: its listener and its shutdown."""

import asyncio
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from manifold.api._app import application
from manifold.contracts.errors import Permanent
from manifold.contracts.http_access import require_token
from manifold.runtime.expiry import export_certificate_expiry
from manifold.runtime.renewal import keep_renewed
from manifold.settings import Settings

SHUTDOWN_GRACE_S = 5  # how long running requests may take at shutdown
BACKLOG = 2048  # of the listening socket


class _Server(uvicorn.Server):
    """A server without uvicorn's signal handlers, which would re-raise the signal at the end. `serve` handles signals instead."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then finish the running requests.

    Raises:
        Permanent: the port is in use, or the host is not loopback and no token is set.
    """
    host_setting = "API_HOST" if settings.api_host else "HOST"
    require_token(settings.api_listens, settings.http_token.get_secret_value(), host_setting)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the supervisor logs the start and the end of this process
    listener = _listen(settings.api_listens, settings.api_port)
    tls_files = settings.http_tls_files
    export_certificate_expiry(settings, settings.mqtt_username_api)
    config = uvicorn.Config(
        application(settings),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        ssl_certfile=tls_files.certificate or None,
        ssl_keyfile=tls_files.key or None,
    )
    config.load()  # makes `config.ssl`, which is used below
    server = _Server(config)

    def stop() -> None:
        server.should_exit = True

    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    with listener:
        renewal: asyncio.Task[None] | None = None
        if config.ssl:
            renewal = asyncio.create_task(keep_renewed(config.ssl, tls_files), name="api.certificate")
        try:
            await server.serve([listener])
        finally:
            if renewal is not None:
                renewal.cancel()


def _listen(host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that listens on the first address of the host."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as exc:
        raise Permanent(f"cannot listen on {host}:{port} ({exc.strerror}); choose another with MANIFOLD_API_PORT") from exc
    listener.setblocking(False)
    return listener
