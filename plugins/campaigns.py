"""Inside the Airflow UI, for whoever is logged in: the campaigns, under /campaigns. Read only; orders are given by DAGs.

Everything is asked of Manifold's API when the page is loaded, with the token of the settings.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

from manifold.settings import Settings, load_settings
from plugins._web import HEADERS, Lazy, ask_api, guarded_app

PREFIX = "/campaigns"
SETTINGS = load_settings()
PAGES = Path(__file__).parent / "pages"
EVENTS, PAGE_OF_EVENTS = 10, 1000
GOOD, OPEN = ("delivered", "confirmed"), ("released", "waiting")


def application(settings: Settings) -> Any:
    """The pages: a list, and one page a campaign."""
    from fastapi import HTTPException, Request, Response
    from jinja2 import Environment, FileSystemLoader

    pages = Environment(loader=FileSystemLoader(PAGES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    app = guarded_app()

    @app.get("/")
    def index() -> Response:
        found = _ask(settings, "campaigns")["campaigns"]
        listed = [each | {"bar": bar(each["states"], each["targets"])} for each in reversed(found)]
        text = pages.get_template("campaigns.html").render(campaigns=listed)
        return Response(text, media_type="text/html", headers=HEADERS)

    @app.get("/{name}")
    def one(name: str) -> Response:
        path = f"campaigns/{quote(name, safe='')}"
        state, plan = _ask(settings, path), _ask(settings, f"{path}/plan")
        waves = [
            wave | {"bar": bar(wave["states"], wave["targets"]), "gate": gate_now(told["gate"], wave)}
            for wave, told in zip(state["waves"], plan["plan"]["waves"], strict=True)
        ]
        shown = {"state": state, "plan": plan, "waves": waves, "events": _last_events(settings, path)}
        text = pages.get_template("campaign.html").render(**shown)
        return Response(text, media_type="text/html", headers=HEADERS)

    @app.exception_handler(Unanswered)
    async def away(request: Request, exc: Unanswered) -> Response:
        del request
        if exc.status == 404:  # HTTP's
            raise HTTPException(404)
        return Response(str(exc), status_code=503, media_type="text/plain")

    return app


class Unanswered(Exception):
    """The API does not give what the page needs."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def bar(states: dict[str, int], targets: int) -> list[tuple[str, int, float]]:
    """The parts of a wave's bar from left to right: what it is, how many targets, and its width in per cent."""
    counts = {
        "good": sum(states.get(name, 0) for name in GOOD),
        "bad": sum(number for name, number in states.items() if name not in (*GOOD, *OPEN)),
        "released": states.get("released", 0),
    }
    counts["waiting"] = targets - sum(counts.values())
    return [(name, number, 100 * number / targets) for name, number in counts.items() if number > 0]


def gate_now(gate: dict[str, Any], wave: dict[str, Any]) -> list[dict[str, str]]:
    """The conditions of a gate, each with the numbers that it compares now."""
    of = {"released": "targets", "known": "released", "success": "known"}
    asked = [(name, gate[name], f"{wave[name]:,} of {wave[whole]:,}") for name, whole in of.items() if gate[name] != "0%"]
    asked += [("soak", gate["soak"], "")] if gate["soak"] != "0s" else []
    asked += [("approved by", str(gate["approve"]), "")] if gate["approve"] else []
    return [{"what": what, "asked": wanted, "now": now} for what, wanted, now in asked]


def _last_events(settings: Settings, path: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = _ask(settings, f"{path}/events?after={after}&limit={PAGE_OF_EVENTS}")
        events, after = [*events, *page["events"]][-EVENTS:], page["after"]
    return events[::-1]


def _ask(settings: Settings, path: str) -> Any:
    status, content, _ = ask_api(settings, path)
    if status != 200:  # HTTP's
        raise Unanswered(status, content.decode(errors="replace"))
    return json.loads(content)


class Campaigns(AirflowPlugin):
    """The plugin, as Airflow loads it."""

    name = "campaigns"
    fastapi_apps = [  # noqa: RUF012  # as Airflow declares it
        {"name": "campaigns", "app": Lazy(application, SETTINGS), "url_prefix": PREFIX}
    ]
    external_views = [  # noqa: RUF012
        {"name": "Campaigns", "href": f"{PREFIX}/", "url_route": "campaigns", "destination": "nav", "category": "browse"}
    ]
