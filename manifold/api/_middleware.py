"""Middleware for every request: checks the token, limits the body, counts the request, and turns errors into problems."""

import time

import structlog
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manifold.api._metrics import REQUESTS, SECONDS
from manifold.api._problems import failed, problem
from manifold.runtime.http import REFUSED, has_token

HEALTH, ALIVE = "/healthz", "/livez"  # an orchestrator's probes send no token
MAX_BODY_BYTES = 64 * 1024  # of a request
ELSEWHERE = "none"  # route label of unknown paths

log = structlog.get_logger(__name__)


class RequestMiddleware:
    """ASGI middleware around the whole API."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        receive = _bounded(receive)
        began, status = time.perf_counter(), 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            if scope["path"] not in (HEALTH, ALIVE) and not has_token(_authorization(scope), self._token):
                detail = "show the token: Authorization: Bearer …, as MANIFOLD_HTTP_TOKEN has it"
                await problem(401, detail, headers=REFUSED)(scope, receive, noted)
            else:
                await self._app(scope, receive, noted)
        except Exception:
            log.exception("a request failed", path=scope["path"])
            if status:  # the response has started: abort it to signal that it is incomplete
                raise
            await failed()(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", ELSEWHERE)
            REQUESTS.labels(route, str(status)).inc()
            SECONDS.labels(route).observe(time.perf_counter() - began)


def _bounded(receive: Receive) -> Receive:
    """Wrap `receive` to raise 413 if the body is too long."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is over {MAX_BODY_BYTES} bytes; send less")
        return message

    return bounded


def _authorization(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else ""
