"""Inside the Airflow UI, for whoever is logged in: the quality reports, under /reports, and the description of Manifold's API.

The pages are read where the audits have put them, on a disk or in an object store (setting `reports`). The description comes
from the API, asked with the token of the settings: beyond loopback the API answers nobody without it, and a browser has none.
"""

import mimetypes
from pathlib import PurePosixPath
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from manifold.settings import Settings, load_settings
from plugins._web import HEADERS, Lazy, ask_api, guarded_app

PREFIX = "/reports"
SETTINGS = load_settings()
API_PAGES = ("docs", "openapi.json")  # of the API, under api/ beside the reports


def application(settings: Settings) -> Any:
    """The pages for those who are logged in to Airflow; others are asked to."""
    from fastapi import HTTPException, Request, Response

    from manifold.lake.reports import open_reports

    reports = open_reports(settings)
    app = guarded_app()

    @app.get("/api/{name}")
    def described(name: str) -> Response:
        if name not in API_PAGES:
            raise HTTPException(404)
        status, content, kind = ask_api(settings, name)
        return Response(content, status_code=status, media_type=kind, headers=HEADERS)

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
        return Response(found, media_type=kind, headers=HEADERS)

    @app.exception_handler(OSError)
    async def away(request: Request, exc: OSError) -> Response:
        del request
        return Response(f"{reports.url} does not give its reports: {exc}", status_code=503, media_type="text/plain")

    return app


class Reports(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "reports"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "reports", "app": Lazy(application, SETTINGS), "url_prefix": PREFIX}
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
