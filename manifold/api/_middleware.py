"""Middleware for every request: checks the token, limits the body, counts the request, and responds to unexpected errors."""

import time

import structlog
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manifold.api._callers import Callers
from manifold.api._metrics import REQUESTS, SECONDS
from manifold.api._problems import problem, unexpected_error_response
from manifold.runtime.http import UNAUTHORIZED_HEADERS

HEALTH, ALIVE = "/healthz", "/livez"  # an orchestrator's probes send no token
MAX_BODY_BYTES = 64 * 1024  # of most requests
CAMPAIGNS_PATH, MAX_PLAN_BYTES = "/api/v1/campaigns", 2 << 20  # requests to campaigns may contain a plan with up to 10,000 VINs
UNKNOWN_ROUTE = "none"  # route label of unknown paths

log = structlog.get_logger(__name__)


class RequestMiddleware:
    """ASGI middleware around the whole API."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":  # the start and the end of the application
            await self._app(scope, receive, send)
            return
        max_bytes = MAX_PLAN_BYTES if scope["path"].startswith(CAMPAIGNS_PATH) else MAX_BODY_BYTES
        receive = _with_body_limit(receive, max_bytes)
        began = time.perf_counter()
        status = 0  # until the response starts

        async def send_and_store_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            caller = self._callers.identify(_authorization(scope))
            scope.setdefault("state", {})["caller"] = caller
            if caller is None and scope["path"] not in (HEALTH, ALIVE):
                detail = "send the token: Authorization: Bearer …, as MANIFOLD_HTTP_TOKEN has it, or a named one"
                response = problem(401, detail, headers=UNAUTHORIZED_HEADERS)
                await response(scope, receive, send_and_store_status)
            else:
                await self._app(scope, receive, send_and_store_status)
        except Exception:
            log.exception("request failed with an unexpected error", method=scope["method"], path=scope["path"])
            if status:  # the response has started: abort it to signal that it is incomplete
                raise
            response = unexpected_error_response()
            await response(scope, receive, send_and_store_status)
        finally:
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            REQUESTS.labels(route, str(status)).inc()
            SECONDS.labels(route).observe(time.perf_counter() - began)


def _with_body_limit(receive: Receive, max_bytes: int) -> Receive:
    """Wrap `receive` so that it raises a 413 error if the body exceeds `max_bytes`."""
    received_bytes = 0

    async def receive_bounded() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > max_bytes:
            raise HTTPException(413, f"the body is over {max_bytes} bytes; send less")
        return message

    return receive_bounded


def _authorization(scope: Scope) -> str:
    """Return the Authorization header of a request; empty if the request has none, or several."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    return values[0].decode("latin-1") if len(values) == 1 else ""
