"""The quality reports inside the Airflow UI: the folder of the reports under /reports, and an entry for it in the navigation.

Airflow serves such pages to whoever reaches it, logged in or not; a deployment that minds puts its own guard before /reports.
"""

from airflow.plugins_manager import AirflowPlugin
from starlette.staticfiles import StaticFiles

from contracts.settings import load_settings

# The folder comes with the first audit.
PAGES = StaticFiles(directory=load_settings().reports_folder, html=True, check_dir=False)


class Reports(AirflowPlugin):
    """What Airflow reads of this file."""

    name = "reports"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "reports", "app": PAGES, "url_prefix": "/reports"}
    ]
    external_views = [  # noqa: RUF012
        {
            "name": "Quality reports",
            "href": "/reports/index.html",
            "url_route": "quality-reports",
            "destination": "nav",
            "category": "browse",
        }
    ]
