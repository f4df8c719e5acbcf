"""Pages under /reports inside the Airflow UI, for users who are logged in: quality reports, and the API's documentation.

The reports are read from the folder or object store to which audits write them (setting `reports`). The documentation is
requested from Manifold's API with the token in the settings, because a browser has no token, and beyond loopback the API
requires one.
"""

import mimetypes
from pathlib import PurePosixPath
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from manifold.settings import Settings, load_settings
from plugins._web import HEADERS, LazyApp, guarded_app, request_api

PREFIX = "/reports"
SETTINGS = load_settings()
API_PAGES = ("docs", "openapi.json")  # pages of the API, served under /reports/api/


def application(settings: Settings) -> Any:
    """Return the application with the pages, for users who are logged in to Airflow."""
    from fastapi import HTTPException, Request, Response

    from manifold.lake.reports import open_reports

    reports = open_reports(settings)
    app = guarded_app()

    @app.get("/api/{name}")
    def api_page(name: str) -> Response:
        if name not in API_PAGES:
            raise HTTPException(404)
        status, content, media_type = request_api(settings, name)
        return Response(content, status_code=status, media_type=media_type, headers=HEADERS)

    @app.get("/{path:path}")
    def report(path: str) -> Response:
        parts = PurePosixPath(path or "index.html").parts
        # Parts such as `..`, or a leading slash, would leave the folder of the reports.
        if not path.isprintable() or any(part.startswith((".", "/")) for part in parts):
            raise HTTPException(404)
        name = "/".join(parts)
        content = reports.read(name)
        if content is None:  # perhaps the path is that of a folder
            name = f"{name}/index.html"
            content = reports.read(name)
        if content is None:
            raise HTTPException(404)
        guessed_type, _ = mimetypes.guess_type(name)
        return Response(content, media_type=guessed_type or "application/octet-stream", headers=HEADERS)

    @app.exception_handler(OSError)
    async def report_unavailable(request: Request, exc: OSError) -> Response:
        del request
        return Response(f"{reports.url} does not give its reports: {exc}", status_code=503, media_type="text/plain")

    return app


class Reports(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "reports"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "reports", "app": LazyApp(application, SETTINGS), "url_prefix": PREFIX}
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
