"""Inside the Airflow UI, for whoever is logged in: the quality reports, under /reports, and the description of Manifold's API.

The pages are read where the audits have put them, on a disk or in an object store (setting `reports`). The description comes
from the API, asked with the token of the settings: beyond loopback the API answers nobody without it, and a browser has none.
"""

import mimetypes
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import PurePosixPath
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from manifold.settings import Settings, load_settings

PREFIX = "/reports"
SETTINGS = load_settings()
# No page needs a script or another host. A script would run in Airflow's origin, with the rights of the reader.
POLICY = (
    "default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
API_PAGES = ("docs", "openapi.json")  # of the API, under api/ beside the reports
API_WAIT_S = 5.0
LOGIN = "/api/v2/auth/login"  # Airflow's; it knows where each of its auth managers asks for one
Message = MutableMapping[str, Any]


class Pages:
    """The pages as an ASGI application, made with its first request: each task of Airflow loads all plugins and serves none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app: Any = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        if self._app is None:
            self._app = application(self._settings)
        await self._app(scope, receive, send)


def application(settings: Settings) -> Any:
    """The pages for those who are logged in to Airflow; others are asked to."""
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import Depends, FastAPI, HTTPException, Request, Response
    from fastapi.responses import RedirectResponse

    from manifold.lake.reports import open_reports

    reports = open_reports(settings)
    app = FastAPI(dependencies=[Depends(get_user)], openapi_url=None)

    @app.get("/api/{name}")
    def described(name: str) -> Response:
        if name not in API_PAGES:
            raise HTTPException(404)
        status, content, kind = _of_api(settings, name)
        return Response(content, status_code=status, media_type=kind, headers={"Content-Security-Policy": POLICY})

    @app.get("/{path:path}")
    def page(path: str) -> Response:
        parts = PurePosixPath(path or "index.html").parts
        if not path.isprintable() or any(part.startswith((".", "/")) for part in parts):
            raise HTTPException(404)
        name = "/".join(parts)
        found = reports.read(name)
        if found is None:
            name = f"{name}/index.html"
            found = reports.read(name)
        if found is None:
            raise HTTPException(404)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(found, media_type=kind, headers={"Content-Security-Policy": POLICY})

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, exc: HTTPException) -> Response:
        if exc.status_code not in {401, 403}:
            return Response("there is no such page", status_code=exc.status_code, media_type="text/plain")
        root = request.scope.get("app_root_path", "")
        return RedirectResponse(f"{root}{LOGIN}?{_next(str(request.url))}", status_code=307)

    @app.exception_handler(OSError)
    async def away(request: Request, exc: OSError) -> Response:
        del request
        return Response(f"{reports.url} does not give its reports: {exc}", status_code=503, media_type="text/plain")

    return app


def _of_api(settings: Settings, name: str) -> tuple[int, bytes, str]:
    """Status, content and media type of a page of the API: 503 and the reason where the API does not give it."""
    import httpx

    from manifold.runtime.tls import verified

    url = f"{settings.api}/api/v1/{name}"
    try:
        trust = verified(settings, url)
        answer = httpx.get(url, headers=settings.bearer, timeout=API_WAIT_S, verify=trust).raise_for_status()
    except (httpx.HTTPError, OSError) as exc:
        return 503, f"{url} does not answer: {exc}; see `manifold status`".encode(), "text/plain"
    return 200, answer.content, answer.headers["content-type"]


def _next(url: str) -> str:
    from urllib.parse import urlencode

    return urlencode({"next": url})


class Reports(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "reports"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "reports", "app": Pages(SETTINGS), "url_prefix": PREFIX}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Quality reports",
            "href": f"{PREFIX}/index.html",
            "url_route": "quality-reports",
            "destination": "nav",
            "category": "browse",
        },
        {
            "name": "Manifold API",
            "href": f"{PREFIX}/api/docs",
            "destination": "nav",
            "category": "browse",
        },
    ]
