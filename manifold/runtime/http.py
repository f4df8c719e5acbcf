"""The HTTP endpoint of a service: /metrics for Prometheus, /healthz and /livez for an orchestrator, and its own routes.

/healthz reports readiness; /livez fails only if a restart may help. The endpoint reveals the service's state; the recorder's also
closes segments, and reveals what the journal has about campaigns. So without a token the endpoint listens on loopback only.
"""

import asyncio
import hmac
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest, make_wsgi_app

from manifold.contracts.errors import Permanent
from manifold.contracts.http_access import require_token
from manifold.contracts.tls import NO_FILES, TlsFiles
from manifold.runtime.renewal import keep_renewed
from manifold.runtime.tls import web_server_context

UNAUTHORIZED_HEADERS = {"WWW-Authenticate": "Bearer"}


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the service is ready, with details for the operator (JSON values)."""

    healthy: bool
    details: Mapping[str, object] = field(default_factory=dict)


@asynccontextmanager
async def serve(
    host: str,
    port: int,
    health: Callable[[], Health],
    routes: Iterable[web.RouteDef] = (),
    *,
    token: str = "",
    tls_files: TlsFiles = NO_FILES,
) -> AsyncIterator[None]:
    """Serve HTTP while the block runs.

    /healthz answers 200 or 503 with `{"healthy": …, <details>}`. /livez answers 200 while the event loop runs.

    If `tls_files` has a certificate, the endpoint serves HTTPS; after a renewal, new connections get the new certificate.

    If there is a `token`, requests without it (`Authorization: Bearer …`) get 401, except for /livez and /healthz: an
    orchestrator's probes have no token. Without it, /healthz gives no details.

    Raises:
        Permanent: the port is in use, or the host is not loopback and no token is set.
        OSError: the certificate cannot be read.
    """
    require_token(host, token)
    context = web_server_context(tls_files) if tls_files.certificate else None

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(request: web.Request) -> web.Response:
        current = health()
        is_authorized = has_token(request.headers.get("Authorization", ""), token)
        details = current.details if is_authorized else {}
        status = 200 if current.healthy else 503
        return web.json_response({"healthy": current.healthy, **details}, status=status)

    async def livez(_: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    @web.middleware
    async def guard(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        if handler in (healthz, livez) or has_token(request.headers.get("Authorization", ""), token):
            return await handler(request)
        return web.Response(status=401, headers=UNAUTHORIZED_HEADERS)

    app = web.Application(middlewares=[guard])
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/livez", livez), *routes])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    renewal: asyncio.Task[None] | None = None
    if context is not None:
        renewal = asyncio.create_task(keep_renewed(context, tls_files), name="http.certificate")
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as exc:
            raise Permanent(f"cannot listen on {host}:{port} ({exc.strerror}); choose another port") from exc
        yield
    finally:
        if renewal is not None:
            renewal.cancel()
        await runner.cleanup()


@contextmanager
def serve_metrics(host: str, port: int, *, token: str = "", tls_files: TlsFiles = NO_FILES) -> Iterator[None]:
    """Serve /metrics alone, in a thread, while the block runs: for a process without an event loop.

    Raises:
        Permanent: the port is in use, or the host is not loopback and no token is set.
    """
    require_token(host, token)
    metrics_app = make_wsgi_app()

    def guarded_app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if has_token(environ.get("HTTP_AUTHORIZATION", ""), token):
            page: Iterable[bytes] = metrics_app(environ, start_response)
            return page
        start_response("401 Unauthorized", list(UNAUTHORIZED_HEADERS.items()))
        return []

    try:
        server = make_server(host, port, guarded_app, _Server, _QuietRequestHandler)
        server.tls_files = tls_files
    except OSError as exc:
        raise Permanent(f"cannot listen on {host}:{port} ({exc.strerror}); choose another port") from exc
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    """Serves each connection in its own thread, so that a slow client does not block others."""

    daemon_threads = True
    tls_files = NO_FILES

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection, with the current certificate. The handshake runs later, in the connection's own thread."""
        connection, address = super().get_request()
        if self.tls_files.certificate:
            context = web_server_context(self.tls_files)
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address


class _QuietRequestHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Suppress the log line of each scrape."""


def has_token(authorization: str, token: str) -> bool:
    """Whether the Authorization header has the token, compared in constant time. An empty token allows everything."""
    scheme, _, header_token = authorization.partition(" ")
    is_same_token = hmac.compare_digest(header_token.strip().encode(errors="surrogateescape"), token.encode())
    return not token or (is_same_token and scheme.lower() == "bearer")
