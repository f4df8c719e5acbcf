"""The ASGI application: its routes, their shared behaviour, and the OpenAPI document."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from manifold.api._callers import Callers, Right, needs
from manifold.api._campaign_orders import campaign_order_routes
from manifold.api._campaigns import campaign_routes
from manifold.api._dead_letters import dead_letter_routes
from manifold.api._docs_page import POLICY, docs_page
from manifold.api._document import describe
from manifold.api._ecq import ecq_routes
from manifold.api._fleet import fleet_routes
from manifold.api._history import history_routes
from manifold.api._lake_half import lake_half_routes
from manifold.api._middleware import ALIVE, HEALTH, RequestMiddleware
from manifold.api._parameters import refuse_unknown_parameters
from manifold.api._problems import register_problem_handlers
from manifold.api._signals import signal_routes
from manifold.api._sources import Sources
from manifold.api._tables import table_routes
from manifold.api._vins import vehicle_routes
from manifold.settings import Settings

PREFIX = "/api/v1"
DOCUMENT, DOCS = f"{PREFIX}/openapi.json", f"{PREFIX}/docs"


def application(settings: Settings) -> Any:
    """Build the ASGI application. It starts even if Redis or the lake is unavailable at that time.

    Raises:
        Permanent: the file of named tokens cannot be read, or has an invalid line.
    """
    callers = Callers.of(settings)
    sources = Sources(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with sources.open():
            yield

    # FastAPI's own documentation pages load scripts from a CDN, so they are replaced by `_docs_page`, which needs none.
    app = FastAPI(lifespan=lifespan, openapi_url=DOCUMENT, docs_url=None, redoc_url=None, redirect_slashes=False)
    for routes in (
        vehicle_routes,
        history_routes,
        fleet_routes,
        signal_routes,
        dead_letter_routes,
        table_routes,
        lake_half_routes,
        campaign_routes,
    ):
        dependencies = [Depends(refuse_unknown_parameters), Depends(needs(Right.READ))]
        app.include_router(routes(sources), prefix=PREFIX, dependencies=dependencies)
    for routes in (ecq_routes, campaign_order_routes):  # here each route declares the right that it needs
        app.include_router(routes(sources), prefix=PREFIX, dependencies=[Depends(refuse_unknown_parameters)])
    _add_service_routes(app, sources)
    register_problem_handlers(app)
    describe(app)
    app.add_middleware(RequestMiddleware, callers=callers)
    return app


def _add_service_routes(app: FastAPI, sources: Sources) -> None:
    """Add /healthz, /livez and /metrics, as in every service, and the documentation page."""

    @app.get(HEALTH, include_in_schema=False)
    async def healthz(request: Request) -> Response:
        health = await sources.health()
        has_valid_token = request.state.caller is not None
        details = health.details if has_valid_token else {}
        return JSONResponse({"healthy": health.healthy, **details}, 200 if health.healthy else 503)

    @app.get(ALIVE, include_in_schema=False)
    async def livez() -> dict[str, bool]:
        return {"alive": True}

    @app.get("/metrics", include_in_schema=False, dependencies=[Depends(needs(Right.READ))])
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get(DOCS, include_in_schema=False)
    def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()), headers={"Content-Security-Policy": POLICY})
