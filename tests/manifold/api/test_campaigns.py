"""Campaigns are proposed, approved and stopped over HTTP, with a real broker and recorder."""

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from manifold.api._callers import Right
from manifold.contracts import campaigns as r
from manifold.contracts import keys
from manifold.contracts.envelope import Stream
from tests.manifold.api.desk import Desk, api_of, settings_at
from tests.manifold.campaigns.plans import document
from tests.manifold.recorder.harness import Harness, running_harness

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

    def recorded(self, campaign: str) -> list[tuple[int, r.Command]]:
        """The orders to a campaign on disk, with their seqs."""
        self.harness.flush()
        found = [(envelope.seq, r.decode(envelope.payload)) for envelope in self.harness.archived(Stream.CAMPAIGN)]
        return [(seq, order) for seq, order in found if isinstance(order, r.Order) and order.campaign == campaign]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Tests isolate themselves by campaigns."""
    folder = tmp_path_factory.mktemp("place")
    with running_harness(folder) as harness:
        more = {"api_tokens_file": str(tokens(folder / "tokens")), "http_token": ALL}
        settings = settings_at(folder / "home", harness.redis_server.port, mqtt_port=harness.broker.port, **more)
        settings = settings.model_copy(update={"recorder_port": harness.running.port})
        assert harness.users is not None
        settings, as_api = (
            settings.model_copy(update={"redis_url": SecretStr(harness.users.url(user, harness.redis_server.port))})
            for user in ("tests", "api")
        )
        with api_of(as_api, folder / "api.log") as api:
            yield Place(Desk(settings, harness.redis_server, api), harness)


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
    recorded = place.recorded(campaign)
    assert [seq for seq, _ in recorded] == [each["seq"] for each in told], "each answer came when its order was on disk"
    first, second, third = (order for _, order in recorded)
    assert first == r.Propose(campaign, "who-may-propose", "new maps", token=told[0]["token"], plan=plan)
    assert second == r.Approve(campaign, "who-may-approve", token=told[1]["token"])
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


ORDERS: dict[str, tuple[Right, dict[str, Any]]] = {
    "/{campaign}/approve": (Right.APPROVE, {}),
    "/{campaign}/refuse": (Right.APPROVE, {}),
    "/{campaign}/pass": (Right.APPROVE, {"wave": 0, "why": "because"}),
    "/{campaign}/resume": (Right.APPROVE, {}),
    "/{campaign}/retry": (Right.APPROVE, {}),
    "/{campaign}/pause": (Right.BRAKE, {}),
    "/{campaign}/cancel": (Right.BRAKE, {}),
    "": (Right.PROPOSE, {"plan": {}}),
    "?dry_run=true": (Right.PROPOSE, {"plan": {}}),
    "/{campaign}/amend": (Right.PROPOSE, {"plan": {}}),
}


@pytest.mark.parametrize("shown", [*TOKENS.values(), ALL])
@pytest.mark.parametrize("path", ORDERS)
def test_an_order_needs_a_named_token_with_its_right(place: Place, campaign: str, path: str, shown: str) -> None:
    needed, body = ORDERS[path]
    answer = place.post(path.format(campaign=campaign), body, token=shown)

    if shown == TOKENS[needed]:
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
