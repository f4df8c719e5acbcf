"""Pages about campaigns inside the Airflow UI, under /campaigns, for users who are logged in. Read only: DAGs give the orders.

Each time a page is loaded, its data is requested from Manifold's API, with the token in the settings.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

from manifold.settings import Settings, load_settings
from plugins._web import HEADERS, LazyApp, guarded_app, request_api

PREFIX = "/campaigns"
SETTINGS = load_settings()
PAGES = Path(__file__).parent / "pages"
MAX_EVENTS = 10  # on the page of a campaign, the newest
EVENTS_PER_REQUEST = 1000
GOOD_STATES, OPEN_STATES = ("delivered", "confirmed"), ("released", "waiting")  # all other states are bad


def application(settings: Settings) -> Any:
    """Return the application with the list of campaigns, and a page for each campaign."""
    from fastapi import HTTPException, Request, Response
    from jinja2 import Environment, FileSystemLoader

    pages = Environment(loader=FileSystemLoader(PAGES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    app = guarded_app()

    @app.get("/")
    def index() -> Response:
        campaigns = _get(settings, "campaigns")["campaigns"]
        newest_first = [
            campaign | {"bar": bar_parts(campaign["states"], campaign["targets"])} for campaign in reversed(campaigns)
        ]
        text = pages.get_template("campaigns.html").render(campaigns=newest_first)
        return Response(text, media_type="text/html", headers=HEADERS)

    @app.get("/{name}")
    def campaign_page(name: str) -> Response:
        path = f"campaigns/{quote(name, safe='')}"
        state = _get(settings, path)
        plan = _get(settings, f"{path}/plan")
        waves = []
        for wave, planned_wave in zip(state["waves"], plan["plan"]["waves"], strict=True):
            bar = bar_parts(wave["states"], wave["targets"])
            gate = gate_conditions(planned_wave["gate"], wave)
            waves.append(wave | {"bar": bar, "gate": gate})
        events = _last_events(settings, path)
        text = pages.get_template("campaign.html").render(state=state, plan=plan, waves=waves, events=events)
        return Response(text, media_type="text/html", headers=HEADERS)

    @app.exception_handler(ApiError)
    async def report_api_error(request: Request, exc: ApiError) -> Response:
        del request
        if exc.status == 404:
            raise HTTPException(404)  # answered by the handler of `guarded_app`
        return Response(str(exc), status_code=503, media_type="text/plain")

    return app


class ApiError(Exception):
    """The API has not answered with 200; `status` is its status: 404, or 503 if it fails or does not answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def bar_parts(states: dict[str, int], targets: int) -> list[tuple[str, int, float]]:
    """Return the parts of the bar of a wave or campaign from left to right: name, number of targets, and width in per cent.

    `states` has the number of targets in each state; `targets` is the number of all targets. Parts without targets are omitted.
    """
    counts = {
        "good": sum(states.get(state, 0) for state in GOOD_STATES),
        "bad": sum(count for state, count in states.items() if state not in (*GOOD_STATES, *OPEN_STATES)),
        "released": states.get("released", 0),
    }
    counts["waiting"] = targets - sum(counts.values())
    return [(name, count, 100 * count / targets) for name, count in counts.items() if count > 0]


def gate_conditions(gate: dict[str, Any], wave: dict[str, Any]) -> list[dict[str, str]]:
    """Return the conditions of a wave's gate: name, required value, and the present numbers (empty if there are none).

    Conditions that always hold, such as a success of 0 %, are omitted.
    """
    conditions = []
    # Each share, and the number of which it is a share.
    for name, total_name in (("released", "targets"), ("known", "released"), ("success", "known")):
        if gate[name] != "0%":
            conditions.append((name, gate[name], f"{wave[name]:,} of {wave[total_name]:,}"))
    if gate["soak"] != "0s":
        conditions.append(("soak", gate["soak"], ""))
    if gate["approve"]:
        conditions.append(("approved by", str(gate["approve"]), ""))
    return [{"what": name, "asked": required, "now": present} for name, required, present in conditions]


def _last_events(settings: Settings, path: str) -> list[dict[str, Any]]:
    """Return the last events of a campaign, at most `MAX_EVENTS`, newest first.

    All pages are requested, because the API lists the oldest events first; `after` is its cursor.
    """
    last_events: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = _get(settings, f"{path}/events?after={after}&limit={EVENTS_PER_REQUEST}")
        last_events = (last_events + page["events"])[-MAX_EVENTS:]
        after = page["after"]
    return last_events[::-1]


def _get(settings: Settings, path: str) -> Any:
    """Return the JSON of the API's answer, parsed; raise ApiError unless the status is 200."""
    status, content, _ = request_api(settings, path)
    if status != 200:
        raise ApiError(status, content.decode(errors="replace"))
    return json.loads(content)


class Campaigns(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "campaigns"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "campaigns", "app": LazyApp(application, SETTINGS), "url_prefix": PREFIX}
    ]
    external_views = [  # noqa: RUF012
        {"name": "Campaigns", "href": f"{PREFIX}/", "url_route": "campaigns", "destination": "nav", "category": "browse"}
    ]
