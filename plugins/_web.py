"""Shared code of the pages inside the Airflow UI: login, security headers, and requests to Manifold's API."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from manifold.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

# The pages run no scripts: a script would run in Airflow's origin, with the rights of the user who reads the page.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY}
API_TIMEOUT_S = 5.0
LOGIN = "/api/v2/auth/login"  # Airflow redirects from this path to the login page of its auth manager
Message = MutableMapping[str, Any]


class LazyApp:
    """An ASGI application that is built at its first request, because every task of Airflow loads all plugins."""

    def __init__(self, build: Callable[[Settings], Any], settings: Settings) -> None:
        self._build = build
        self._settings = settings
        self._app: Any = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Handle one ASGI request."""
        if self._app is None:
            self._app = self._build(self._settings)
        await self._app(scope, receive, send)


def guarded_app() -> "FastAPI":
    """Return a FastAPI application for users who are logged in to Airflow; others are redirected to the login page."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from fastapi.responses import RedirectResponse

    app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, exc: HTTPException) -> Response:
        needs_login = exc.status_code in {401, 403}
        if not needs_login:
            return Response("there is no such page", status_code=exc.status_code, media_type="text/plain")
        root = request.scope.get("app_root_path", "")
        query = urlencode({"next": str(request.url)})
        return RedirectResponse(f"{root}{LOGIN}?{query}", status_code=307)

    return app


def request_api(settings: Settings, path: str) -> tuple[int, bytes, str]:
    """Return status, content and media type of the API's answer to a GET request.

    The status is 200 or 404 from the API, or 503, with the reason as text, if the API fails or does not answer.
    """
    import httpx

    from manifold.runtime.tls import verified

    url = f"{settings.api}/api/v1/{path}"
    try:
        tls_context = verified(settings, url)
        answer = httpx.get(url, headers=settings.bearer, timeout=API_TIMEOUT_S, verify=tls_context)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()
    except (httpx.HTTPError, OSError) as exc:
        return 503, f"{url} does not answer: {exc}; see `manifold status`".encode(), "text/plain"
    return answer.status_code, answer.content, answer.headers["content-type"]
