"""The HTTP face of a service: /metrics for Prometheus, /healthz for whoever asks whether it is ready, and its own routes."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from contracts.errors import Permanent


@dataclass(frozen=True, slots=True)
class Health:
    """Ready to serve or not, and what an operator wants to know about it (JSON values)."""

    healthy: bool
    details: Mapping[str, object] = field(default_factory=dict)


@asynccontextmanager
async def serve(host: str, port: int, health: Callable[[], Health], routes: Iterable[web.RouteDef] = ()) -> AsyncIterator[None]:
    """Serve while the block runs. /healthz answers 200 or 503 with `{"healthy": …, <details>}`.

    Raises:
        Permanent: the port is taken.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        now = health()
        return web.json_response({"healthy": now.healthy, **now.details}, status=200 if now.healthy else 503)

    app = web.Application()
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz), *routes])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as exc:
            raise Permanent(f"cannot listen on {host}:{port} ({exc.strerror}); choose another port") from exc
        yield
    finally:
        await runner.cleanup()
