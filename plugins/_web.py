"""What the pages inside the Airflow UI share: they are for those who are logged in, run no script, and may ask Manifold's API."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from manifold.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

# No page needs a script or another host. A script would run in Airflow's origin, with the rights of the reader.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY}
API_WAIT_S = 5.0
LOGIN = "/api/v2/auth/login"  # Airflow's; it knows where each of its auth managers asks for one
Message = MutableMapping[str, Any]


class Lazy:
    """An ASGI application, made with its first request: each task of Airflow loads all plugins and serves none."""

    def __init__(self, make: Callable[[Settings], Any], settings: Settings) -> None:
        self._make, self._settings = make, settings
        self._app: Any = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        if self._app is None:
            self._app = self._make(self._settings)
        await self._app(scope, receive, send)


def guarded_app() -> "FastAPI":
    """A FastAPI application for those who are logged in to Airflow; others are asked to."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from fastapi.responses import RedirectResponse

    app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, exc: HTTPException) -> Response:
        if exc.status_code not in {401, 403}:
            return Response("there is no such page", status_code=exc.status_code, media_type="text/plain")
        root = request.scope.get("app_root_path", "")
        return RedirectResponse(f"{root}{LOGIN}?{urlencode({'next': str(request.url)})}", status_code=307)

    return app


def ask_api(settings: Settings, path: str) -> tuple[int, bytes, str]:
    """Status, content and media type of a page of the API; 503 and the reason where the API does not give it."""
    import httpx

    from manifold.runtime.tls import verified

    url = f"{settings.api}/api/v1/{path}"
    try:
        trust = verified(settings, url)
        answer = httpx.get(url, headers=settings.bearer, timeout=API_WAIT_S, verify=trust)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()
    except (httpx.HTTPError, OSError) as exc:
        return 503, f"{url} does not answer: {exc}; see `manifold status`".encode(), "text/plain"
    return answer.status_code, answer.content, answer.headers["content-type"]
