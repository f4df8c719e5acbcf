"""Middleware for every request: checks the token, limits the body, counts the request, and turns errors into problems."""

import time

import structlog
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from manifold.api._callers import Callers
from manifold.api._metrics import REQUESTS, SECONDS
from manifold.api._problems import failed, problem
from manifold.runtime.http import UNAUTHORIZED_HEADERS

HEALTH, ALIVE = "/healthz", "/livez"  # an orchestrator's probes send no token
MAX_BODY_BYTES = 64 * 1024  # of a request
PLANS, MAX_PLAN_BYTES = "/api/v1/campaigns", 2 << 20  # a plan lists up to 10,000 vehicles
ELSEWHERE = "none"  # route label of unknown paths

log = structlog.get_logger(__name__)


class RequestMiddleware:
    """ASGI middleware around the whole API."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app, self._callers = app, callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        receive = _bounded(receive, MAX_PLAN_BYTES if scope["path"].startswith(PLANS) else MAX_BODY_BYTES)
        began, status = time.perf_counter(), 0

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            caller = self._callers.identify(_authorization(scope))
            scope.setdefault("state", {})["caller"] = caller
            if caller is None and scope["path"] not in (HEALTH, ALIVE):
                detail = "send the token: Authorization: Bearer …, as MANIFOLD_HTTP_TOKEN has it, or a named one"
                await problem(401, detail, headers=UNAUTHORIZED_HEADERS)(scope, receive, send_and_note_status)
            else:
                await self._app(scope, receive, send_and_note_status)
        except Exception:
            log.exception("a request failed", path=scope["path"])
            if status:  # the response has started: abort it to signal that it is incomplete
                raise
            await failed()(scope, receive, send_and_note_status)
        finally:
            route = getattr(scope.get("route"), "path", ELSEWHERE)
            REQUESTS.labels(route, str(status)).inc()
            SECONDS.labels(route).observe(time.perf_counter() - began)


def _bounded(receive: Receive, most: int) -> Receive:
    """Wrap `receive` to raise 413 if the body is too long."""
    taken = 0

    async def bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise HTTPException(413, f"the body is over {most} bytes; send less")
        return message

    return bounded


def _authorization(scope: Scope) -> str:
    found = [value for name, value in scope["headers"] if name == b"authorization"]
    return found[0].decode("latin-1") if len(found) == 1 else ""
