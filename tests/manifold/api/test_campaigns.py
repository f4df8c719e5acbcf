"""Campaigns are proposed, approved and stopped over HTTP, with a real broker and recorder."""

import asyncio
import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import given
from schemathesis.specs.openapi.checks import positive_data_acceptance

from manifold.api._callers import Right
from manifold.campaigns.parsing import plan_sha256
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from manifold.contracts.seq import seq_of, wall_clock_ms
from manifold.messaging.publisher import Publisher
from tests.manifold.api.desk import Desk, api_of, desk_beside_a_recorder
from tests.manifold.api.test_document import bounded
from tests.manifold.api.test_ecq import Place as EcqPlace
from tests.manifold.campaigns.plans import document, vins
from tests.manifold.recorder.harness import Harness
from tests.support.servers import free_port, wait_until

PROBLEM = "application/problem+json"
HERE = "/api/v1/campaigns"
TOKENS = {right: f"token-of-{right}" for right in Right}  # one right each
EVERYBODY, ALL = "token-of-anna", "token-of-all-services"


def tokens(file: Path) -> Path:
    """A file with a token for each right, and one with all of them."""
    named = {f"who-may-{right}": (token, right.value) for right, token in TOKENS.items()} | {"anna": (EVERYBODY, ",".join(Right))}
    lines = (f"{name}:{hashlib.sha256(token.encode()).hexdigest()}:{rights}" for name, (token, rights) in named.items())
    file.write_text("\n".join(lines))
    return file


@dataclass(slots=True)
class Place:
    """The API and the recorder that receives its publishes."""

    desk: Desk
    harness: Harness

    def ask(self, path: str = "", method: str = "GET", token: str = EVERYBODY, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} | how.pop("headers", {})
        return self.desk.ask(f"{HERE}{path}", method, headers=headers, **how)

    def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        return self.ask(path, "POST", json=body, **how)

    def plan(self, campaign: str, **fields: Any) -> dict[str, Any]:
        """A plan whose data is published."""
        self.harness.redis.set(keys.data(f"data-{campaign}"), b"12345")
        return document(campaign=campaign, data_id=f"data-{campaign}", **fields)

    def start(self, campaign: str, **fields: Any) -> None:
        """Propose and approve a campaign, and start it as the campaigner does."""
        assert self.post("", {"plan": self.plan(campaign, **fields)}).status_code == 200
        assert self.post(f"/{campaign}/approve", {}).status_code == 200

        async def publish() -> None:
            async with Publisher(self.desk.settings, self.desk.settings.mqtt_username_campaigns) as publisher:
                await publisher.order(r.Start(campaign, f"{r.CAMPAIGNER}0"))

        asyncio.run(publish())

    def recorded(self, campaign: str) -> list[tuple[int, r.Command]]:
        """The orders to a campaign on disk, with their seqs."""
        self.harness.flush()
        found = [(envelope.seq, r.decode(envelope.payload)) for envelope in self.harness.archived(Stream.CAMPAIGN)]
        return [(seq, order) for seq, order in found if isinstance(order, r.Order) and order.campaign == campaign]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Tests isolate themselves by campaigns."""
    folder = tmp_path_factory.mktemp("place")
    with desk_beside_a_recorder(folder, api_tokens_file=str(tokens(folder / "tokens")), http_token=ALL) as (desk, harness):
        yield Place(desk, harness)


@pytest.fixture
def campaign() -> str:
    return f"c-{uuid.uuid4().hex[:12]}"


def test_a_campaign_is_proposed_approved_and_paused_with_receipts(place: Place, campaign: str) -> None:
    plan = place.plan(campaign)
    answers = [
        place.post("", {"plan": plan, "why": "new maps"}, token=TOKENS[Right.PROPOSE]),
        place.post(f"/{campaign}/approve", {}, token=TOKENS[Right.APPROVE]),
        place.post(f"/{campaign}/pause", {"why": "smoke"}, token=TOKENS[Right.BRAKE]),
    ]

    assert [answer.status_code for answer in answers] == [200] * 3, [answer.text for answer in answers]
    told = [answer.json() for answer in answers]
    assert [(each["campaign"], each["do"], each["by"]) for each in told] == [
        (campaign, "propose", "who-may-propose"),
        (campaign, "approve", "who-may-approve"),
        (campaign, "pause", "who-may-brake"),
    ]
    assert [each["effect"] for each in told] == ["applied"] * 3, "a pause holds before the start too"
    recorded = place.recorded(campaign)
    assert [seq for seq, _ in recorded] == [each["seq"] for each in told], "each answer came when its order was on disk"
    first, second, third = (order for _, order in recorded)
    assert first == r.Propose(campaign, "who-may-propose", "new maps", token=told[0]["token"], plan=plan)
    assert second == r.Approve(campaign, "who-may-approve", token=told[1]["token"], plan_sha256=plan_sha256(plan))
    assert third == r.Pause(campaign, "who-may-brake", "smoke", token=told[2]["token"])


def test_a_dry_run_records_nothing_and_says_the_same_twice(place: Place, campaign: str) -> None:
    plan = place.plan(campaign, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    first, second = (place.post("?dry_run=true", {"plan": plan}) for _ in range(2))

    assert first.status_code == 200, first.text
    assert first.content == second.content
    told = first.json()
    assert [(wave["name"], wave["targets"]) for wave in told["waves"]] == [("canary", 2), ("rest", 8)]
    assert (told["data_bytes"], told["targets"], told["in_no_wave"], told["warnings"]) == (5, 10, 0, [])
    assert place.recorded(campaign) == []


ROUTES: dict[tuple[str, str], tuple[Right, dict[str, Any] | None]] = {
    ("POST", "/campaigns"): (Right.PROPOSE, {"plan": {}}),
    ("POST", "/campaigns?dry_run=true"): (Right.PROPOSE, {"plan": {}}),
    ("POST", "/campaigns/{campaign}/amend"): (Right.PROPOSE, {"plan": {}}),
    ("POST", "/campaigns/{campaign}/approve"): (Right.APPROVE, {}),
    ("POST", "/campaigns/{campaign}/refuse"): (Right.APPROVE, {}),
    ("POST", "/campaigns/{campaign}/pass"): (Right.APPROVE, {"wave": 0, "why": "because"}),
    ("POST", "/campaigns/{campaign}/resume"): (Right.APPROVE, {}),
    ("POST", "/campaigns/{campaign}/retry"): (Right.APPROVE, {}),
    ("POST", "/campaigns/{campaign}/pause"): (Right.BRAKE, {}),
    ("POST", "/campaigns/{campaign}/cancel"): (Right.BRAKE, {}),
    ("GET", "/campaigns"): (Right.READ, None),
    ("GET", "/campaigns/{campaign}"): (Right.READ, None),
    ("GET", "/campaigns/{campaign}/targets"): (Right.READ, None),
    ("GET", "/campaigns/{campaign}/events"): (Right.READ, None),
    ("GET", "/campaigns/{campaign}/forecast"): (Right.READ, None),
    ("GET", "/campaigns/{campaign}/report"): (Right.READ, None),
    ("GET", "/vins/V/campaigns"): (Right.READ, None),
    ("GET", "/vins/V"): (Right.READ, None),
    ("GET", "/queues"): (Right.READ, None),
    ("POST", "/ecq/{campaign}/rewind"): (Right.REWIND, {"to": "earliest"}),
}


@pytest.mark.parametrize("shown", [*TOKENS, None])
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_route_needs_a_token_with_its_right(place: Place, campaign: str, method: str, path: str, shown: Right | None) -> None:
    needed, body = ROUTES[method, path]
    token = ALL if shown is None else TOKENS[shown]
    headers = {"Authorization": f"Bearer {token}"}
    answer = place.desk.ask(f"/api/v1{path.format(campaign=campaign)}", method, json=body, headers=headers)

    if needed in ({Right.READ, Right.REWIND} if shown is None else {shown}):
        assert answer.status_code not in (401, 403), answer.text
        return
    assert (answer.status_code, answer.headers["content-type"]) == (403, PROBLEM)
    assert f"needs a named token with the right {needed}" in answer.json()["detail"]
    assert place.recorded(campaign) == []


@pytest.mark.parametrize("path", [f"{HERE}/x/pause", f"{HERE}", "/api/v1/fleet", "/metrics"])
def test_nobody_gets_in_without_a_token(place: Place, path: str) -> None:
    method = "POST" if path.startswith(HERE) else "GET"
    shown: list[dict[str, str]] = [{}, {"Authorization": "Bearer wrong"}]

    assert [place.desk.ask(path, method, headers=headers, json={}).status_code for headers in shown] == [401, 401]


def test_who_orders_is_the_tokens_name_and_never_a_claim(place: Place, campaign: str) -> None:
    answer = place.post(f"/{campaign}/pause", {"by": "somebody else"})

    assert (answer.status_code, "by=somebody else" in answer.json()["detail"]) == (422, True)
    assert place.post(f"/{campaign}/pause", {}).json()["by"] == "anna"


def test_a_running_campaign_is_paused_resumed_and_cancelled(place: Place, campaign: str) -> None:
    place.start(campaign)
    version = place.ask(f"/{campaign}").headers["etag"]
    paused = place.post(f"/{campaign}/pause", {"why": "smoke"})

    assert (paused.status_code, paused.json()["effect"]) == (200, "applied"), paused.text
    assert place.harness.redis.hget(keys.BRAKES, campaign) == f"{paused.json()['seq']} pause".encode(), "the brake is on"
    stale = place.post(f"/{campaign}/resume", {}, headers={"If-Match": version})
    assert (stale.status_code, "the campaign is at version" in stale.json()["detail"]) == (412, True)
    told = place.ask(f"/{campaign}")
    assert (told.json()["state"], told.json()["because"]) == ("paused", "paused by anna: smoke")
    resumed = place.post(f"/{campaign}/resume", {}, headers={"If-Match": told.headers["etag"]})
    assert (resumed.status_code, resumed.json()["effect"]) == (200, "applied")
    assert place.post(f"/{campaign}/cancel", {"why": "enough"}).json()["effect"] == "applied"
    last = place.post(f"/{campaign}/resume", {})
    assert (last.status_code, last.json()["detail"]) == (409, "the campaign is cancelled, because cancelled by anna: enough")


def test_an_order_to_a_campaign_that_nobody_proposed_is_missing(place: Place, campaign: str) -> None:
    answer = place.post(f"/{campaign}/approve", {})

    assert (answer.status_code, campaign in answer.json()["detail"]) == (404, True)
    assert place.recorded(campaign) == []


def test_the_same_plan_again_gives_the_same_receipt_and_another_is_refused(place: Place, campaign: str) -> None:
    plan = place.plan(campaign)
    first, again = (place.post("", {"plan": plan}) for _ in range(2))
    other = place.post("", {"plan": plan | {"rate": 5}})

    assert (first.status_code, again.status_code, again.json()["seq"]) == (200, 200, first.json()["seq"])
    assert (other.status_code, "was proposed with another plan" in other.json()["detail"]) == (409, True)
    assert len(place.recorded(campaign)) == 1


def test_an_order_with_a_repeated_token_is_recorded_once(place: Place, campaign: str) -> None:
    place.start(campaign)
    body = {"ended": ["failed"], "token": uuid.uuid4().hex}
    first, again = (place.post(f"/{campaign}/retry", body) for _ in range(2))
    other = place.post(f"/{campaign}/retry", body | {"ended": ["expired"]})

    assert (first.status_code, again.json()["seq"]) == (200, first.json()["seq"])
    assert (other.status_code, "its token was used for another order" in other.json()["detail"]) == (409, True)


def test_a_repeated_pause_has_the_effect_of_the_first(place: Place, campaign: str) -> None:
    place.start(campaign)
    body = {"token": uuid.uuid4().hex}
    first, again = (place.post(f"/{campaign}/pause", body).json() for _ in range(2))

    assert (first["effect"], again["effect"], again["seq"]) == ("applied", "applied", first["seq"])


def test_a_pause_of_another_version_is_refused_and_not_recorded(place: Place, campaign: str) -> None:
    place.start(campaign)
    before = place.recorded(campaign)
    answer = place.post(f"/{campaign}/pause", {}, headers={"If-Match": '"1"'})

    assert (answer.status_code, place.recorded(campaign)) == (412, before)


def test_a_vehicle_of_a_proposal_is_told_its_wave(place: Place, campaign: str) -> None:
    vin = f"V-{campaign}"
    waves = [{"name": "canary", "vins": [vin]}, {"name": "rest", "size": "rest"}]
    assert place.post("", {"plan": place.plan(campaign, waves=waves)}).status_code == 200
    told = place.desk.ask(f"/api/v1/vins/{vin}/campaigns", headers={"Authorization": f"Bearer {EVERYBODY}"}).json()["campaigns"]

    assert [(each["campaign_state"], each["wave_name"], each["state"]) for each in told] == [("proposed", "canary", "waiting")]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"data_id": "nothing"}, 'data_id "nothing": nothing was published under it; publish it first'),
        ({"targets": {"file": "/etc/passwd"}}, 'targets.file "/etc/passwd": must be a path below _lists/'),
        ({"waves": [{"name": "a", "size": 10}, {"name": "b", "size": "rest"}]}, 'waves[1].size "rest": no target is left'),
        ({"rate": 0}, "rate 0: must be 1 to 1000000"),
        ({"ends": "2020-12-20T00:00:00Z"}, "must be in the future"),
    ],
)
def test_a_proposal_is_refused_with_field_value_and_remedy(
    place: Place, campaign: str, fields: dict[str, Any], problem: str
) -> None:
    answers = [place.post(path, {"plan": place.plan(campaign) | fields}) for path in ("", "?dry_run=true")]

    assert [(answer.status_code, answer.headers["content-type"]) for answer in answers] == [(422, PROBLEM)] * 2
    assert [problem in answer.json()["detail"] for answer in answers] == [True, True], answers[0].text
    assert place.recorded(campaign) == []


def test_targets_and_orders_are_returned_in_pages(place: Place, campaign: str) -> None:
    place.start(campaign, waves=[{"name": "canary", "size": 2}, {"name": "rest", "size": "rest"}])
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = place.ask(f"/{campaign}/targets", params={"limit": 3, "after": after}).json()
        seen, after = seen + [target["vin"] for target in page["targets"]], page["after"]

    assert sorted(seen) == list(vins(10))
    canary = place.ask(f"/{campaign}/targets", params={"wave": 0}).json()["targets"]
    assert [(target["vin"], target["wave_name"], target["state"]) for target in canary] == [
        (vin, "canary", "waiting") for vin in seen[:2]
    ]
    assert place.ask(f"/{campaign}/targets", params={"state": "delivered"}).json()["targets"] == []
    stranger = place.ask(f"/{campaign}/targets", params={"after": "nobody"})
    assert (stranger.status_code, "after=nobody: is not a target" in stranger.json()["detail"]) == (422, True)
    first = place.ask(f"/{campaign}/events", params={"limit": 2}).json()
    second = place.ask(f"/{campaign}/events", params={"after": first["after"]}).json()
    told = [(event["do"], event["by"]) for event in first["events"] + second["events"]]
    assert told == [("propose", "anna"), ("approve", "anna"), ("start", "campaigner/0")]
    assert second["after"] is None


def test_a_campaign_is_listed_shown_forecast_and_reported(place: Place, campaign: str) -> None:
    vin = f"V-{campaign}"
    place.start(campaign, targets={"vins": [vin]}, rate=5)
    mine = [each for each in place.ask(params={"state": "running"}).json()["campaigns"] if each["campaign"] == campaign]

    (told,) = mine
    assert (told["targets"], told["states"], told["rate"]) == (1, {"waiting": 1}, {"per_minute": 5, "last_60_s": 0})
    assert (told["authors"], told["approved_by"], told["version"]) == (["anna"], ["anna"], 3)
    assert place.ask(f"/{campaign}").json() == told
    of_vehicle = place.desk.ask(f"/api/v1/vins/{vin}/campaigns", headers={"Authorization": f"Bearer {EVERYBODY}"}).json()
    assert [(each["campaign"], each["campaign_state"], each["state"]) for each in of_vehicle["campaigns"]] == [
        (campaign, "running", "waiting")
    ]
    forecast = place.ask(f"/{campaign}/forecast").json()
    assert (forecast["never"], forecast["delivered"]["99"]["p90"] is not None) == (0, True)
    report = place.ask(f"/{campaign}/report").json()["report"]
    assert (report["state"], report["is_proved"], len(report["orders"])) == ("running", True, 3)
    assert place.ask("/nobody").status_code == 404


def test_a_pause_without_redis_is_on_record_and_not_in_force_yet(place: Place, campaign: str) -> None:
    place.start(campaign)
    place.harness.redis_server.kill()
    try:
        answer = place.post(f"/{campaign}/pause", {})
    finally:
        place.harness.restart_redis()

    assert (answer.status_code, answer.json()["effect"]) == (202, "not in force yet"), answer.text
    assert "not in force yet" in answer.json()["reason"]
    on = f"{answer.json()['seq']} pause".encode()
    wait_until(lambda: place.harness.redis.hget(keys.BRAKES, campaign) == on, what="the brake to be on when Redis is back")


def test_without_a_broker_orders_are_unavailable_and_queues_still_readable(place: Place, campaign: str) -> None:
    settings = place.desk.settings.model_copy(update={"mqtt_port": free_port(), "api_port": free_port()})
    ecq_place = EcqPlace(place.desk, place.harness)
    ecq_place.append(campaign, [(seq_of(wall_clock_ms(), 0, 0), "k", b"")])
    with api_of(settings, settings.home / "alone.log") as api, ThreadPoolExecutor(2) as pool:
        alone = Place(Desk(settings, place.harness.redis_server, api), place.harness)
        to_rewind = {"headers": {"Authorization": f"Bearer {EVERYBODY}"}, "json": {"to": "earliest"}}
        paused = pool.submit(alone.post, f"/{campaign}/pause", {})
        rewound = pool.submit(alone.desk.ask, f"/api/v1/ecq/{campaign}/rewind", "POST", **to_rewind)
        answers = [paused.result(), rewound.result()]
        readable = alone.desk.ask(f"/api/v1/ecq/{campaign}", headers=to_rewind["headers"])

    assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [(503, "5")] * 2
    assert "the brake is not known to be on: order it again" in answers[0].json()["detail"]
    assert len(readable.json()["entries"]) == 1


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), [route for route in ROUTES if "campaigns" in route[1] and "?" not in route[1]])
def test_responses_match_the_openapi_document(place: Place, method: str, path: str, kind: str) -> None:
    headers = {"Authorization": f"Bearer {EVERYBODY}"}
    schema = schemathesis.openapi.from_dict(place.desk.ask("/api/v1/openapi.json", headers=headers).json())
    operation = schema[f"/api/v1{path.replace('/V/', '/{vin}/')}"][method]
    mode = schemathesis.GenerationMode(kind)
    # A schema cannot say everything that a plan has to be, nor which version a campaign has.
    beyond_a_schema = [positive_data_acceptance] if method == "POST" else []

    @bounded
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if kind == "positive" and "campaign" in case.path_parameters:
            case.path_parameters["campaign"] = "generated"  # a % in it would be sent as it is, and decoded to something else
        case.call_and_validate(base_url=place.desk.settings.api, timeout=30, headers=headers, excluded_checks=beyond_a_schema)

    ask()


def test_a_system_orders_for_its_users_if_its_token_may(place: Place, campaign: str) -> None:
    place.post("", {"plan": place.plan(campaign)})
    told, refused, odd = (
        place.post(f"/{campaign}/pause", {}, token=token, headers={"On-Behalf-Of": user})
        for token, user in ((EVERYBODY, "ben"), (TOKENS[Right.BRAKE], "ben"), (EVERYBODY, "b/c"))
    )

    assert told.json()["by"] == "anna/ben"
    assert (refused.status_code, "the right delegate" in refused.json()["detail"]) == (403, True)
    assert odd.status_code == 422


def test_the_plan_is_shown_with_its_rules_its_warnings_and_who_is_asked(place: Place, campaign: str) -> None:
    rules = [{"name": "r1", "count": ["failed"], "over": "2%", "at_least": 200, "in": "wave"}]
    place.post(
        "", {"plan": place.plan(campaign, waves=[{"name": "few", "size": 2}, {"name": "all", "size": "rest"}], rules=rules)}
    )
    told = place.ask(f"/{campaign}/plan").json()

    assert (told["plan"]["targets"]["vins"], told["waves"]) == (10, [2, 8])
    assert told["rules"] == [{"name": "r1", "then": "pause", "over": "2%", "in": "wave", "known": 0, "count": 0}]
    assert "rule r1 cannot trip in wave few of 2" in told["warnings"][0]
    (ask,) = told["asks"]
    assert (ask["what"], ask["approved_by"], ask["needed"], ask["answers"]) == ("plan", [], 1, 0)
    assert place.post(f"/{campaign}/refuse", {}).status_code == 200
    assert place.ask(f"/{campaign}/plan").json()["asks"] == []


def test_a_plan_may_wait_for_its_list_and_is_not_approved_before(place: Place, campaign: str) -> None:
    plan = place.plan(campaign) | {"targets": {"batch": "b", "ended": ["failed"]}}
    dry, proposed = place.post("?dry_run=true", {"plan": plan}), place.post("", {"plan": plan})
    early = place.post(f"/{campaign}/approve", {})

    assert (dry.status_code, "campaign_targets resolves this list" in dry.json()["detail"]) == (422, True)
    assert (proposed.status_code, proposed.json()["effect"]) == (200, "applied"), proposed.text
    assert (early.status_code, "not complete on record" in early.json()["detail"]) == (409, True)
    assert place.ask(f"/{campaign}/plan").json()["asks"] == []
