"""Campaigns from Airflow: with a real API, recorder, dispatcher, broker, Spark and Airflow, and at last a campaigner."""

import asyncio
import csv
import hashlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import SecretStr

from manifold.archive.flush import flush
from manifold.archive.recorded import RecordedSegments
from manifold.archive.store import Archive
from manifold.campaigns.decided import Stage
from manifold.campaigns.parsing import plan_sha256
from manifold.contracts import campaigns as r
from manifold.contracts.envelope import Stream
from manifold.lake.reports import open_reports
from manifold.messaging.publisher import Publisher
from manifold.sandbox.fleet import Fleet
from manifold.sandbox.fleet import vins as sandbox_vins
from manifold.sandbox.platform import airflow
from manifold.sandbox.platform.airflow_api import AirflowApi
from manifold.sandbox.platform.airflow_users import ADMIN, OPERATOR, logged_in, password_of
from tests.dags.running import ASK_S, RUN_S, SCHEDULED
from tests.dispatcher.platform import a_platform
from tests.docs.pictures import log_in
from tests.manifold.api.desk import Desk, api_of
from tests.manifold.campaigns.plans import NOW, document, fleet_here, proposed, vins
from tests.manifold.campaigns.service.worlds import World, copies
from tests.pipelines.campaign_makers import messages
from tests.support.browser import needs_chromium, offline_page
from tests.support.redis_users import RedisUsers
from tests.support.servers import ROOT, free_port, start_airflow, stopping, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DAGS = ("campaign_approvals", "campaign_control", "campaign_reports", "campaign_targets", "ingest_archives")
ANNA, AIRFLOW = "token-of-anna", "token-of-airflow"
RIGHTS = {ANNA: "read,propose", AIRFLOW: "read,approve,brake,delegate"}


UNDER_WAY = document(
    number=2000,
    campaign="eu-map-47",
    waves=[
        {"name": "canary", "size": "10%", "gate": {"released": "90%", "known": "95%", "success": "95%", "soak": "10m"}},
        {"name": "half", "size": "50%", "gate": {"success": "98%"}},
        {"name": "rest", "size": "rest"},
    ],
    rate=20,
    rules=[
        {"name": "r1", "count": ["failed"], "over": "8%", "at_least": 50, "in": "wave"},
        {"name": "r2", "count": ["failed"], "over": 40, "in": "campaign"},
    ],
)


@dataclass(slots=True)
class Place:
    """The API, the services behind it, and an Airflow that orders."""

    desk: Desk
    world: World
    api: AirflowApi

    def propose(self, campaign: str, **fields: Any) -> None:
        """Propose a plan as Anna."""

        async def publish() -> None:
            async with Publisher(self.desk.settings) as platform:
                await platform.data(f"data-{campaign}", b"12345")

        asyncio.run(publish())
        plan = document(campaign=campaign, data_id=f"data-{campaign}", **fields)
        headers = {"Authorization": f"Bearer {ANNA}"}
        answer = self.desk.ask("/api/v1/campaigns", "POST", json={"plan": plan}, headers=headers)
        assert answer.status_code == 200, answer.text

    def recorded(self, campaign: str) -> list[r.Order]:
        """The orders to a campaign on disk."""
        assert flush(self.desk.settings)
        archived = RecordedSegments(Archive(self.desk.settings.archive)).recorded_since(Stream.CAMPAIGN, 0)
        found = [r.decode(envelope.payload) for envelope in archived]
        return [order for order in found if isinstance(order, r.Order) and order.campaign == campaign]

    def run(self, dag_id: str, **conf: object) -> tuple[str, str]:
        """Trigger a run and wait for its end; return its id and its state."""
        run_id = self.api.trigger_dag(dag_id, conf)
        return run_id, self.api.wait(dag_id, run_id, within_s=RUN_S)

    def result(self, dag_id: str, **conf: object) -> dict[str, Any]:
        """The result of the first task of a run, which has to succeed."""
        run_id, state = self.run(dag_id, **conf)
        task = "discover" if dag_id == "ingest_archives" else dag_id
        assert state == "success", self.api.task_log(dag_id, run_id, task)
        found: dict[str, Any] = self.api.result(dag_id, run_id, task)
        return found

    def questions(self, *campaigns: str) -> list[dict[str, Any]]:
        """The question about each campaign that waits under Required Actions, once they can be answered.

        Airflow 3.3 loses an answer that comes before its scheduler knows that the task waits: within a second of the question.
        """

        def asked() -> list[dict[str, Any]] | None:
            open_ones = self.api._request("GET", "/dags/~/dagRuns/~/hitlDetails?response_received=false&limit=100")[
                "hitl_details"
            ]
            waiting = [each for each in open_ones if each["task_instance"]["state"] == "awaiting_input"]
            found = [each for name in campaigns for each in waiting if name in each["subject"]]
            return found if len(found) == len(campaigns) else None

        found = wait_until(asked, within_s=RUN_S, what=f"the questions about {campaigns}", longest_pause_s=ASK_S)
        assert found is not None
        heartbeats: set[str] = set()

        def two_heartbeats_later() -> bool:
            heartbeats.add(self.api._request("GET", "/monitor/health")["scheduler"]["latest_scheduler_heartbeat"])
            return len(heartbeats) > 2

        wait_until(two_heartbeats_later, within_s=RUN_S, what="two rounds of the scheduler", longest_pause_s=ASK_S)
        return found

    def answer(self, question: dict[str, Any], option: str, why: str) -> str:
        """Answer as the user admin; return the state in which the run ends."""
        task = question["task_instance"]
        dag_id, run_id = task["dag_id"], task["dag_run_id"]
        path = f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/{task['task_id']}/-1/hitlDetails"
        with logged_in(self.desk.settings, airflow.url(self.desk.settings), ADMIN) as admin:
            admin._request("PATCH", path, json={"chosen_options": [option], "params_input": {"why": why}})
        return self.api.wait(dag_id, run_id, within_s=RUN_S)


def archive_campaign_under_way(home: Path) -> None:
    """Write the record of a campaign that is in its second wave, as another recorder has left it."""
    failing = frozenset(vins(2000)[::40])
    world = proposed(UNDER_WAY, fleet_here(2000, failing=failing))
    world.run(NOW + 45 * 60_000)
    segments = RecordedSegments(Archive(f"file://{home}/archive"))
    for envelopes in messages(world.facts, UNDER_WAY).values():
        segments.seal(envelopes, node=7)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, spark: str) -> Iterator[Place]:
    """Tests isolate themselves by campaigns."""
    folder = tmp_path_factory.mktemp("place")
    tokens = folder / "tokens"
    named = zip(("anna", "airflow"), RIGHTS.items(), strict=True)
    tokens.write_text(
        "\n".join(f"{name}:{hashlib.sha256(token.encode()).hexdigest()}:{rights}" for name, (token, rights) in named)
    )
    archive_campaign_under_way(folder / "home")
    more: dict[str, Any] = {"api_tokens_file": str(tokens), "airflow_port": free_port(), "api_token": AIRFLOW}
    more |= dict.fromkeys([f"{what}_schedule" for what in SCHEDULED], "") | {"spark_master": spark}
    users = RedisUsers(folder / "users")
    with a_platform(folder / "home", users, **more) as platform:
        platform.start_recorder()
        settings = platform.settings
        as_api = settings.model_copy(update={"redis_url": SecretStr(users.url("api", settings.redis_port))})
        with (
            api_of(as_api, folder / "api.log") as server,
            stopping(start_airflow(settings)),
            logged_in(settings, airflow.url(settings)) as api,
        ):
            for dag_id in DAGS:
                api.wait_known(dag_id, within_s=180)
            yield Place(Desk(settings, platform.redis, server), World(platform), api)


def proposed_by_anna(place: Place) -> str:
    """A new campaign that Anna has proposed."""
    name = f"c-{uuid.uuid4().hex[:12]}"
    place.propose(name, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    return name


@pytest.fixture
def campaign(place: Place) -> str:
    """Such a campaign."""
    return proposed_by_anna(place)


def test_an_order_is_recorded_in_the_name_of_who_triggered_the_run(place: Place, campaign: str) -> None:
    run_id, state = place.run("campaign_control", campaign=campaign, do="cancel", why="another one is better")

    assert state == "success", place.api.task_log("campaign_control", run_id, "campaign_order")
    *_, order = place.recorded(campaign)
    assert (type(order), order.by, order.why) == (r.Cancel, "airflow/operator", "another one is better")
    assert place.api.result("campaign_control", run_id, "campaign_order")["effect"] == "applied"


def test_an_open_question_is_asked_once_and_answered_under_required_actions(place: Place, campaign: str) -> None:
    refused = proposed_by_anna(place)
    run_id, state = place.run("campaign_approvals")
    assert state == "success", place.api.task_states("campaign_approvals", run_id)
    question, another = place.questions(campaign, refused)
    assert question["subject"] == f"Approve the plan of {campaign}?"
    assert "to 10 vehicles until 2026-12-20T00:00:00Z" in question["body"]
    assert "| canary | 2 |" in question["body"]
    place.run("campaign_approvals")
    runs = place.api._request("GET", "/dags/campaign_approvals/dagRuns?limit=100")["dag_runs"]
    assert [len([run for run in runs if name in run["dag_run_id"]]) for name in (campaign, refused)] == [1, 1]

    assert place.answer(question, "Approve", "the canary is small") == "success"
    proposal, order = place.recorded(campaign)
    assert isinstance(order, r.Approve)
    assert isinstance(proposal, r.Propose)
    assert order.plan_sha256 == plan_sha256(proposal.plan), "the one that the question showed"
    assert (order.by, order.why) == ("airflow/admin", "the canary is small")

    assert place.answer(another, "Refuse", "not now") == "success"
    *_, order = place.recorded(refused)
    assert (type(order), order.by, order.why) == (r.Refuse, "airflow/admin", "not now")


def test_an_order_that_does_not_fit_fails_at_once_and_says_why(place: Place, campaign: str) -> None:
    run_id, state = place.run("campaign_control", campaign=campaign, do="resume")

    log = place.api.task_log("campaign_control", run_id, "campaign_order")
    assert (state, "the campaign is proposed" in log) == ("failed", True), log
    assert [type(order) for order in place.recorded(campaign)] == [r.Propose]


@needs_chromium
def test_the_airflow_ui_shows_campaigns_with_their_waves_rules_and_events(place: Place, campaign: str) -> None:
    with offline_page() as offline:
        page, url = offline.page, airflow.url(place.desk.settings)
        page.set_default_timeout(60_000)
        log_in(page, url, password_of(place.desk.settings, OPERATOR))
        page.goto(f"{url}/campaigns/")
        page.get_by_role("link", name=campaign).wait_for()
        page.get_by_role("link", name="eu-map-47").click()

        assert page.locator("h1").inner_text() == "eu-map-47"
        rows = page.locator("table.waves tr").all_inner_texts()[1:]
        assert [row.split()[0] for row in rows] == ["canary", "half", "rest"]
        assert "released 90% (200 of 200)" in rows[0]
        widths = [round(box["width"]) for box in (each.bounding_box() for each in page.locator(".bar").all()) if box]
        assert len(set(widths)) == 1
        assert page.locator(".bar .good").count() >= 2
        assert page.get_by_role("cell", name="15 of 720 known").count() == 1, "of rule r2"
        events = page.locator("table").last.locator("tr").all_inner_texts()[1:]
        assert [event.split()[1] for event in events] == ["pass", "hold", "unhold", "hold", "start", "approve", "propose"]
        if os.environ.get("PICTURES"):
            page.screenshot(path=ROOT / "docs" / "img" / "airflow-campaign.png", full_page=True)
        assert offline.asked_outside == []


def test_a_campaign_runs_from_its_list_to_its_proof(place: Place) -> None:
    """The last test, because its campaigner carries out the campaigns of the others, too."""
    began, name, fleet_vins = datetime.now(UTC), f"c-{uuid.uuid4().hex[:12]}", sandbox_vins(6, seed=47)
    settings = place.desk.settings
    listed = settings.home / "archive" / "_lists" / "fleet.csv"
    listed.parent.mkdir()
    listed.write_text("\n".join(["vin,zone", *(f"{vin},Europe/Berlin" for vin in fleet_vins)]))
    ends = (began + timedelta(hours=1)).isoformat(timespec="seconds")
    place.propose(
        name, targets={"file": "fleet.csv"}, ends=ends, waves=[{"name": "one", "size": 1}, {"name": "rest", "size": "rest"}]
    )

    found = place.result("campaign_targets", campaign=name)
    assert (found["targets"], found["recorded"]) == (6, 1)
    place.api.trigger_dag("campaign_approvals", {"campaign": name})
    (question,) = place.questions(name)
    assert "to 6 vehicles" in question["body"]
    assert place.answer(question, "Approve", "the list is right") == "success"

    async def play() -> Fleet:
        async with Fleet(settings, fleet_vins) as fleet:
            await fleet.connect()
            await asyncio.to_thread(place.world.wait_for, name, Stage.COMPLETED)
        return fleet

    place.world.platform.start_dispatcher()
    campaigner = place.world.start_campaigner()
    assert copies(asyncio.run(play()), name) == dict.fromkeys(fleet_vins, 1)
    campaigner.stop()
    interval = {"from": (began - timedelta(hours=1)).isoformat(), "to": (began + timedelta(hours=1)).isoformat()}
    place.result("ingest_archives", **interval)
    assert place.result("campaign_reports", campaign=name)["campaigns"] == 1

    reports = open_reports(settings)
    assert "Proved: nothing in its record contradicts its plan." in (reports.read(f"campaigns/{name}/index.html") or b"").decode()
    rows = list(csv.DictReader((reports.read(f"campaigns/{name}/targets.csv") or b"").decode().splitlines()))
    assert {row["vin"]: row["state"] for row in rows} == dict.fromkeys(fleet_vins, "delivered")
    people = [order.by for order in place.recorded(name) if not order.by.startswith(r.CAMPAIGNER)]
    assert people == ["anna", "airflow/operator", "airflow/admin"]
